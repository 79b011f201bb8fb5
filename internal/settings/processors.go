package settings

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// busyFor is how long all processors are used after the last call of busy.
const busyFor = time.Second

// SpareProcessors makes Go use only half of the available processors, but at least one, unless the environment variable
// GOMAXPROCS is set. It is for a limiter whose NATS server is another process. If there is more to do than requests, such as a
// backlog of alerts, busy makes Go use all processors for a second. busy may be called often and concurrently.
//
// A batch of requests passes through a chain of goroutines that wake each other: one reads and decodes, one writes to the
// store, one answers. If each runs on a processor of its own, a wake-up costs more than the work, and takes the
// processor away from the processes that the limiter waits for.
func SpareProcessors() (busy func()) {
	p := processors{all: runtime.GOMAXPROCS(0)}
	if os.Getenv("GOMAXPROCS") != "" || p.all == 1 {
		return func() {}
	}
	p.spare()
	return p.busy
}

// processors switches between all processors and half of them.
type processors struct {
	all int

	mu sync.Mutex
	// busyUntil is when only half of them are used again; zero while that is so.
	busyUntil time.Time
}

func (p *processors) spare() { runtime.GOMAXPROCS(p.all / 2) }

func (p *processors) busy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busyUntil.IsZero() {
		runtime.GOMAXPROCS(p.all)
		time.AfterFunc(busyFor, p.idle)
	}
	p.busyUntil = time.Now().Add(busyFor)
}

// idle spares processors again, unless busy was called meanwhile.
func (p *processors) idle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.busyUntil); left > 0 {
		time.AfterFunc(left, p.idle)
		return
	}
	p.busyUntil = time.Time{}
	p.spare()
}
