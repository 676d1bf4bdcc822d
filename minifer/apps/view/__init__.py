"""Figures of what was measured or recorded. Nothing here measures, and no figure is drawn from invented numbers."""
