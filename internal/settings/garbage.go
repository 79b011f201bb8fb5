package settings

import (
	"os"
	"runtime/debug"
)

// gcPercent replaces Go's GC target of 100 %. The live heap is small and every request and event leaves garbage, so 100 % would
// run the garbage collector many times a second.
const gcPercent = 150

// CollectLess makes the garbage collector run less often, unless the environment variable GOGC is set.
func CollectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
