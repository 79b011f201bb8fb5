package settings

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// busyFor is how long all processors are used after busy was called last.
const busyFor = time.Second

// SpareProcessors has Go use half of the processors that it may, one at least, unless the environment says how many: for a
// limiter that has not its NATS server in its own process. Where it has more to do than requests, as with a backlog of alerts,
// busy has it use all for a second. It may be called often, and at the same time.
//
// What a limiter does for a batch of requests is a chain of goroutines that wake each other: one reads, one decodes, one writes
// to the store, one answers, one flushes. With a processor for each, a wake-up costs more than what is to be done, in two
// processes at least, and those that the limiter waits for lack the processor meanwhile.
func SpareProcessors() (busy func()) {
	p := processors{all: runtime.GOMAXPROCS(0)}
	if os.Getenv("GOMAXPROCS") != "" || p.all == 1 {
		return func() {}
	}
	p.spare()
	return p.busy
}

// processors are those that Go uses.
type processors struct {
	all int

	mu sync.Mutex
	// until is when they are spared again; the zero time while they are.
	until time.Time
}

func (p *processors) spare() { runtime.GOMAXPROCS(p.all / 2) }

func (p *processors) busy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.IsZero() {
		runtime.GOMAXPROCS(p.all)
		time.AfterFunc(busyFor, p.idle)
	}
	p.until = time.Now().Add(busyFor)
}

// idle spares them, unless they were needed meanwhile.
func (p *processors) idle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.until); left > 0 {
		time.AfterFunc(left, p.idle)
		return
	}
	p.until = time.Time{}
	p.spare()
}
