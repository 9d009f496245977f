"""What people look at: mp4 files, side-by-side clips and the contact sheet. Scores never read these."""

from fastcache.media.sheet import SheetVideo, contact_sheet
from fastcache.media.video import difference, enlarge, side_by_side, write_mp4

__all__ = ["SheetVideo", "contact_sheet", "difference", "enlarge", "side_by_side", "write_mp4"]
