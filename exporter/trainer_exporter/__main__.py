"""``python -m trainer_exporter``."""

import sys

from trainer_exporter.cli import main

sys.exit(main())
