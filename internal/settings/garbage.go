package settings

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
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

// memoryShare is how much of a container's memory Go may use. SQLite, stacks and what was read from files are beside it.
const memoryShare = 0.75

// FitContainer makes the garbage collector run more often before the memory limit of the container would kill the process,
// unless the environment variable GOMEMLIMIT is set. Without a limit it changes nothing.
func FitContainer() { fitMemory(memlimit.FromCgroup) }

func fitMemory(limit memlimit.Provider) {
	_, _ = memlimit.Set(memlimit.WithProvider(limit), memlimit.WithRatio(memoryShare)) // it fails if there is no limit
}
