"""How nbval reads the notebooks."""

from nbval.plugin import IPyNbCell


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            item.output_timeout = 300  # seconds between two messages of a cell; nbval's 5 end a cell that thinks longer
            if "stderr" not in item.parent.skip_compare:
                item.parent.skip_compare += ("stderr",)  # logs, of which a machine may add its own
