package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// phase is where a closed loop is: at first it warms up.
type phase struct{ n atomic.Int32 }

func (p *phase) measuring() bool { return p.n.Load() == 1 }
func (p *phase) over() bool      { return p.n.Load() == 2 }

// closedLoop runs n goroutines that keep one request in flight each, until the phase is over. It returns how long was
// measured.
func closedLoop(ctx context.Context, n int, warmup, measure time.Duration, keepAsking func(i int, phase *phase)) time.Duration {
	var p phase
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { keepAsking(i, &p) })
	}
	wait(ctx, warmup)
	began := time.Now()
	p.n.Add(1)
	wait(ctx, measure)
	p.n.Add(1)
	elapsed := time.Since(began)
	all.Wait()
	return elapsed
}
