package settings

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much garbage may gather, in percent of what lives. What lives is small and every request and event leaves
// garbage, so that Go's 100 would collect many times a second.
const gcPercent = 150

// CollectLess sets it, unless the environment says what it is to be.
func CollectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
