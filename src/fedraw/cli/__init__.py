"""The command `fedraw`: one module for each subcommand, and `app`, which dispatches to them.

main      the entry point, which imports nothing before Ctrl-C is handled
app       runs a command and turns its errors into messages and exit codes
commands  the subcommands by name, imported when they are called
console   output: results to standard output, everything else to standard error
"""
