"""Writes the pages of the reference that come from the code itself, before each build.

They are the API (from docstrings), the methods (from the catalogue and the files of the methods),
the command line (from the commands) and the keys of a spec (from the template). Four entry pages
are committed, so that links lead somewhere in a clone too; each includes a generated text from
`_generated`. All other generated pages are not committed. A build fails if a public name is missing
from the API pages.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

import fedraw
from fedraw.strategies.catalog import CATALOG, SENT, Method

log = logging.getLogger(__name__)

# The public names of `fedraw`, one page for each topic. Names that no topic lists are on the last.
TOPICS = {
    "simulate": ("Simulate", "simulate Spec tune Tuning TuningPoint"),
    "results": (
        "Results and comparisons",
        "Result SeedResult load compare Comparison ComparisonRow PairedDifference Stat Table",
    ),
    "data": (
        "Data and clients",
        "DataSpec Dataset from_arrays Columns Features Coverage Dirichlet IID LabelTable "
        "rarity_scores weights LabelNoise Drift Misreport Summaries",
    ),
    "conditions": (
        "Speeds, availability, costs",
        "Correlated Equal Ratio Stragglers Uniform Availability Losses Membership Costs",
    ),
    "training": ("Local training", "SGD ClientData TrainingContext Calibration logit_shift"),
    "strategies": ("Strategies", ""),  # those of the catalogue
    "protocol": (
        "The protocol of strategies",
        "Strategy Setup Needs Update Layout Arrived Joined Left Declared Simulation Step",
    ),
    "audit": ("Audit", "audit Audit"),
    "errors": ("Errors and other names", "FedrawError BadInput"),
}


def packages() -> dict[str, ModuleType]:
    """All documented subpackages: those that declare what they export."""
    folder = Path(fedraw.__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    modules = {name: import_module(f"fedraw.{name}") for name in names}
    return {f"fedraw.{name}": own for name, own in modules.items() if hasattr(own, "__all__")}


def topic_names() -> dict[str, list[str]]:
    """The public names of `fedraw` for each topic; every name has exactly one topic."""
    listed = {topic: names.split() for topic, (_, names) in TOPICS.items()}
    factories = dict.fromkeys(method.factory.__name__ for method in CATALOG.values())
    listed["strategies"] = [name for name in factories if name in fedraw.__all__]
    taken = {name for names in listed.values() for name in names}
    listed["errors"] += [name for name in fedraw.__all__ if name not in taken]
    return listed


def package_names() -> dict[str, list[str]]:
    """The names of each subpackage that neither `fedraw` nor an earlier package exports."""
    seen = {id(getattr(fedraw, name)) for name in fedraw.__all__}
    names: dict[str, list[str]] = {}
    for dotted, package in packages().items():
        names[dotted] = [own for own in package.__all__ if id(getattr(package, own)) not in seen]
        seen |= {id(getattr(package, own)) for own in names[dotted]}
    return names


# The committed entry pages, and the generated text that each includes.
ENTRIES = {
    "api/index.md": "api.txt",
    "methods/index.md": "methods.txt",
    "cli.md": "cli.txt",
    "spec.md": "spec.txt",
}


def write_pages(app: Sphinx) -> None:
    """Write all generated pages; a page that has not changed keeps its file."""
    folder = Path(app.srcdir) / "reference"
    with mock(app.config.autodoc_mock_imports):
        pages = dict(api_pages()) | dict(method_pages())
    pages |= {"cli.md": command_page(), "spec.md": spec_page()}
    for name, text in pages.items():
        path = folder / name
        if name in ENTRIES:
            path = folder / "_generated" / ENTRIES[name]
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for old in [*folder.glob("api/*.md"), *folder.glob("methods/*.md")]:
        if str(old.relative_to(folder)) not in pages:
            old.unlink()


# -- API ------------------------------------------------------------------------------------------


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for each topic and each documented subpackage, and their index."""
    listed = topic_names()
    for topic, (title, _) in TOPICS.items():
        text = f"# {title}\n\nAll names of this page are imported from `fedraw`.\n"
        yield f"api/{topic}.md", text + "".join(entry("fedraw", name) for name in listed[topic])
    for dotted, package in packages().items():
        text = f"# `{dotted}`\n\n{markdown(inspect.getdoc(package) or '')}\n"
        own = package_names()[dotted]
        also = [name for name in package.__all__ if name not in own]
        if also:
            links = ", ".join(f"`{name}`" for name in also)
            text += f"\nThe package also exports these names of other pages: {links}.\n"
        yield f"api/{dotted}.md", text + "".join(entry(dotted, name) for name in own)
    yield (
        "api/index.md",
        "The public API is what `fedraw` and the packages below export. Anything else may change "
        "without notice.\n\n```{toctree}\n:maxdepth: 2\n\n"
        + "\n".join([*TOPICS, *packages()])
        + "\n```\n",
    )


def entry(package: str, name: str) -> str:
    """The autodoc directive of one public name."""
    value = getattr(import_module(package), name)
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
    elif inspect.isfunction(value):
        kind = "function"
    else:
        about = f"   {comment_above(package, name)}\n"
        return f"\n```{{eval-rst}}\n.. py:data:: {package}.{name}\n\n{about}```\n"
    return f"\n```{{eval-rst}}\n.. auto{kind}:: {package}.{name}\n```\n"


def comment_above(package: str, name: str) -> str:
    """The comment above the definition of a constant or a type, as one paragraph."""
    folder = Path(fedraw.__file__).parent
    defined = re.compile(rf"((?:^#.*\n)*)^{name}(?:: [^=\n]+)? = (.*)", re.MULTILINE)
    for path in [*(folder / package.split(".")[1]).rglob("*.py"), *folder.rglob("*.py")]:
        found = defined.search(path.read_text(encoding="utf-8"))
        if found:
            words = " ".join(line.lstrip("# ") for line in found[1].splitlines())
            return words.replace("`", "``") or f"``{found[2]}``"
    return ""


def check_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name that the API pages lack."""
    described = set(env.domains.python_domain.objects)
    names = [f"fedraw.{name}" for name in fedraw.__all__]
    with mock(app.config.autodoc_mock_imports):
        names += [f"{dotted}.{name}" for dotted, own in package_names().items() for name in own]
    for name in names:
        if name not in described:
            log.warning("the public name %s is missing from the reference", name)


# -- Methods --------------------------------------------------------------------------------------

SENDS = {
    "model": "its model",
    "delta": "the difference to the model it started from",
    "sums": "the sums of the fixed features of its samples, once",
}


def method_pages() -> Iterator[tuple[str, str]]:
    """A page for each method with its variants and ablations, and their index."""
    bases = [method for method in CATALOG.values() if method.base is method]
    for method in bases:
        yield f"methods/{method.name}.md", method_page(method)
    rows = ""
    for own in CATALOG.values():
        needs = own.make().needs
        rows += (
            f"| [`{own.name}`]({own.base.name}.md) | {own.title} | {own.summary} | "
            f"{own.memory_text} | {SENT[needs.sends]} | "
            f"{'yes' if needs.label_evidence or needs.payload else 'no'} | {own.source} | "
            f"{own.relation or '–'} |\n"
        )
    yield (
        "methods/index.md",
        "Each method has one name in specs, logs, tables, the audit and the server. Memory counts "
        "models that the server stores: K is the buffer size, N the number of clients. The rule of "
        "a method was taken from its paper, from code that its authors or others published, or is "
        "ours. The page of each method lists deviations.\n\n"
        "`fedraw methods` prints this list, and `fedraw methods NAME` the settings of a method.\n\n"
        "| name | method | rule | memory | clients send | uses labels | rule from | related to |\n"
        "|---|---|---|---|---|---|---|---|\n"
        + rows
        + "\n```{toctree}\n:hidden:\n\n"
        + "\n".join(method.name for method in bases)
        + "\n```\n",
    )


def method_page(method: Method) -> str:
    """The page of one method: rule, needs, settings, variants, citation."""
    needs = method.make().needs
    doc = inspect.getdoc(import_module(method.factory.__module__)) or ""
    # The summary and the citation have places of their own on the page.
    blocks = doc.split("\n\n")[1:]
    rule = "\n\n".join(blocks[1:] if '"' in blocks[0] or "Learning" in blocks[0] else blocks)
    needed = [
        f"Each client sends {SENDS[needs.sends]}"
        + (", and its training loss." if needs.loss else "."),
        "Rarity scores come from label counts (setting `labels`)."
        if needs.label_evidence
        else "Sums are of labels, and must match the counts that clients declare."
        if needs.payload
        else "The method does not use labels.",
    ]
    if needs.min_clients > 1:
        needed.append(f"At the default settings it needs at least {needs.min_clients} clients.")
    if needs.proximal:
        needed.append(f"Local training has a proximal term with the factor {needs.proximal}.")
    text = f"# {method.title}\n\n`{method.name}` {method.summary}.\n\n## Rule\n\n{markdown(rule)}\n"
    text += "\n## What it needs\n\n" + "".join(f"- {line}\n" for line in needed)
    text += f"- Server memory: {method.memory_text}.\n- The rule is from {method.source}.\n"
    if method.relation:
        text += f"- It is related to another method: {method.relation}.\n"
    if method.audit_rule is None:
        text += "- The audit has no prediction for this method.\n"
    text += f"\n## Settings\n\n{settings_table(method)}\n"
    others = [own for own in CATALOG.values() if own.base is method and own is not method]
    if others:
        text += "\n## Variants and ablations\n\n| name | preset | rule |\n|---|---|---|\n"
        for own in others:
            settings = own.shown_settings
            preset = ", ".join(f"`{k} = {settings[k]}`" for k in {**own.preset, **own.defaults})
            text += f"| `{own.name}` | {preset} | {own.summary} |\n"
    text += (
        "\n## Use it\n\n```python\n"
        f'result = fedraw.simulate(strategy="{method.name}", events=600)\n'
        f'```\n\nIn a spec: `strategy.name = "{method.name}"`. In Python: '
        f"{{py:class}}`fedraw.{method.factory.__name__}`.\n"
    )
    return text + f"\n## Reference\n\n{reference(method)}.\n"


def reference(method: Method) -> str:
    """The publication, or a link to the page about a method of our own."""
    page = re.search(r"docs/(\S+\.md)", method.reference)
    return f"[{method.title} is described here](../../{page[1]})" if page else method.reference


def settings_table(method: Method) -> str:
    """Keys of `[strategy]` with types, defaults and meanings."""
    rows = ""
    types, meanings = method.setting_types, method.setting_meanings
    for key, default in method.shown_settings.items():
        kind = types[key].replace("|", "or")
        rows += f"| `{key}` | `{kind}` | `{default}` | {cell(meanings[key])} |\n"
    if not rows:
        return "The method has no settings."
    return "| key | type | default | meaning |\n|---|---|---|---|\n" + rows


# -- Command line and specs -----------------------------------------------------------------------


def command_page() -> str:
    """Every command with its arguments and options, from the commands themselves."""
    from fedraw.cli.app import app
    from fedraw.cli.commands import OPTIONAL, OWN, _as_command, _LazyCommand

    del app  # importing it sets up the commands
    text = (
        "Exit codes: 0 done, 1 a run or a gate failed, 2 bad input, 130 interrupted. `fedraw "
        "--install-completion` installs shell completion.\n\n"
        "| command | what it does |\n|---|---|\n"
    )
    short = OWN | {name: line for name, (line, _) in OPTIONAL.items()}
    text += "".join(f"| [`{name}`](#fedraw-{name}) | {line} |\n" for name, line in short.items())
    root = click.Group("fedraw")
    parent = click.Context(root, info_name="fedraw")
    for name in OWN:
        command = _as_command(name, _LazyCommand(name, "")._load(name))
        text += command_section(command, name, parent, 2)
    text += "\n## `fedraw reproduce`\n\nThe package `studies` contributes this command. "
    return text + "[Reproduction](../research/reproduction.md) describes it.\n"


def command_section(command: click.Command, name: str, parent: click.Context, level: int) -> str:
    """The help of one command and of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    text = f"\n{'#' * level} `{context.command_path}`\n\n{markdown(command.help or '')}\n\n"
    text += f"```text\n{context.command_path} {usage}\n```\n\n"
    records = [own.get_help_record(context) for own in command.params]
    rows = [record for record in records if record is not None]
    if rows:
        text += "| option | meaning |\n|---|---|\n"
        text += "".join(f"| `{cell(name)}` | {cell(line)} |\n" for name, line in rows)
    if isinstance(command, click.Group):
        for below, own in command.commands.items():
            text += command_section(own, below, context, level + 1)
    return text


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def spec_page() -> str:
    """The template of `fedraw new`, section by section."""
    template = (files("fedraw.experiment") / "template.toml").read_text(encoding="utf-8")
    parts = re.split(r"\n\n(?=(?:# )?\[)", template.strip())
    text = (
        "Lines that begin with `#` and a key are off by default. In Python the same keys are the "
        "fields of {py:class}`fedraw.Spec` and its sections.\n"
    )
    for part in parts:
        named = re.match(r"(?:# )?\[([a-z_.]+)\]", part)
        title = f"`[{named[1]}]`" if named else "The beginning"
        text += f"\n## {title}\n\n```toml\n{part}\n```\n"
    return text


# -- Pages outside of docs/ -----------------------------------------------------------------------

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")


class Repository:
    """Makes pages of the Markdown files elsewhere in the repository to which the site links.

    A page of the site links to such a file as GitHub needs it, such as
    `../../studies/results/cpu/arena.md`. The site gets a copy of the file below `repository/`, and
    all links of pages and copies lead to where the target is in the site.
    """

    def __init__(self, docs: Path) -> None:
        self.docs, self.root = docs, docs.parent
        self.copies: dict[Path, Path] = {}

    def write(self) -> None:
        """Copy every file that a page or a copy links to."""
        waiting = [path for path in self.docs.rglob("*.md") if "repository" not in path.parts]
        while waiting:
            source = waiting.pop()
            text = source.read_text(encoding="utf-8")
            targets = {self._target(source, found[3]) for found in LINK.finditer(text)}
            for path in targets - set(self.copies):
                if path.suffix == ".md" and path.is_file() and not path.is_relative_to(self.docs):
                    self.copies[path] = self.docs / "repository" / path.relative_to(self.root)
                    waiting.append(path)
        for source, copy in self.copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = "---\norphan: true\n---\n\n" + source.read_text(encoding="utf-8")
            if not copy.exists() or copy.read_text(encoding="utf-8") != text:
                copy.write_text(text, encoding="utf-8")

    def relink(self, app: Sphinx, docname: str, content: list[str]) -> None:
        """Lead the links of a page to where their targets are in the site."""
        page = Path(app.env.doc2path(docname))
        if page.suffix != ".md":
            return
        originals = {copy: source for source, copy in self.copies.items()}
        source = originals.get(page, page)

        def lead(found: re.Match[str]) -> str:
            image, words, link, anchor = found.groups()
            target = self._target(source, link)
            if "://" in link or (source is page and target.is_relative_to(self.docs)):
                return found[0]
            if target.is_dir():
                return (
                    words
                    if words.startswith("`")
                    else f"{words} (`{target.relative_to(self.root)}`)"
                )
            there = self.copies.get(target, target)
            return f"{image}[{words}]({os.path.relpath(there, page.parent)}{anchor})"

        content[0] = LINK.sub(lead, content[0])

    def _target(self, source: Path, link: str) -> Path:
        path = Path(os.path.normpath(source.parent / link))
        return path / "README.md" if (path / "README.md").is_file() else path


# -- Gallery --------------------------------------------------------------------------------------


def copy_gallery(app: Sphinx, failure: Exception | None) -> None:
    """Copy the pages of the gallery as they are, with the page of the arena among them."""
    docs, out = Path(app.srcdir), Path(app.outdir) / "gallery"
    pages = [*(docs / "gallery").glob("*.html")]
    pages.append(docs.parent / "studies" / "results" / "cpu" / "arena.html")
    linked = re.findall(r'href="gallery/(.+?)"', (docs / "gallery.md").read_text(encoding="utf-8"))
    missing = set(linked) - {page.name for page in pages if page.exists()}
    if missing and failure is None:
        raise FileNotFoundError(f"docs/gallery.md links to {missing}; run 'make gallery'")
    out.mkdir(exist_ok=True)
    for page in pages:
        shutil.copy(page, out)


# -- Docstrings -----------------------------------------------------------------------------------


def markdown(doc: str) -> str:
    """A plain docstring as Markdown: blocks that are indented or doctests become code."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", doc.strip()):
        if block.startswith(">>>"):
            out.append(f"```pycon\n{block}\n```")
        elif all(line.startswith("    ") for line in block.splitlines()):
            code = "\n".join(line[4:] for line in block.splitlines())
            joined = out and out[-1].startswith("```text")
            if joined:
                out[-1] = out[-1][:-4] + f"\n\n{code}\n```"
            else:
                out.append(f"```text\n{code}\n```")
        else:
            out.append("   ".join(map(formula, re.split(r" {3,}", block))))
    return "\n\n".join(out)


def formula(part: str) -> str:
    """Code, if a part of a paragraph between wide gaps is a formula; otherwise the part itself."""
    if not re.search(r"←| = ", part) or re.match(r"`|[A-Za-z]{2,} ", part) or "\n" in part:
        return part
    inside, rest = re.fullmatch(r"(.+?)([.,;]?)", part).groups()  # type: ignore[union-attr]
    return f"`{inside}`{rest}"


def tidy(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring that has Markdown's code and indented formulas."""
    blocks = re.split(r"\n[ ]*\n", "\n".join(lines).strip("\n"))
    for i, block in enumerate(blocks):
        indented = all(line.startswith("    ") for line in block.splitlines())
        if indented and i and not re.match(r"\w+:\n", blocks[i - 1]):
            blocks[i] = "::\n\n" + block
        elif not block.startswith(">>>"):
            code = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", block)
            # Outside of code, bars and stars are characters and not markup.
            parts = re.split(r"(``.+?``)", code, flags=re.DOTALL)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            blocks[i] = "".join(parts)
    lines[:] = [*"\n\n".join(blocks).split("\n"), ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks of this extension."""
    repository = Repository(Path(app.srcdir))
    app.connect("builder-inited", write_pages)
    app.connect("builder-inited", lambda app: repository.write())
    app.connect("source-read", repository.relink)
    app.connect("env-check-consistency", check_names)
    app.connect("build-finished", copy_gallery)
    app.connect("autodoc-process-docstring", tidy, priority=400)  # before napoleon
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
