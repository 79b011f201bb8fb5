package settings

import (
	"os"
	"runtime"
)

// SpareProcessors has Go use half of the processors that it may, one at least, unless the environment says how many: for a
// worker that has neither its NATS server nor alerts to do in its own process.
//
// What such a worker does for a batch is a chain of goroutines that wake each other: one reads, one decodes, one writes to
// the store, one answers, one flushes. With a processor for each, a wake-up costs more than what is to be done, in two
// processes at least, and those that the worker waits for lack the processor meanwhile.
func SpareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}
