import sys
from pathlib import Path

for folder in ("unit", "notebooks", "engine"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
