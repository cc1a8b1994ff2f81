"""The server: FedRAW until twenty updates have arrived."""

from fedraw.flower import server_app
from quickstart.task import net

app = server_app(initial_model=lambda: net().state_dict())
