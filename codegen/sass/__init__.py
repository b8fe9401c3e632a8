"""Machine code of NVIDIA GPUs as text: its instructions, its loops, and what is counted in them."""
