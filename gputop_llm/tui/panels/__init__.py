"""What the screens say: pure functions from a frame and its history to lines."""
