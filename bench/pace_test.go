package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

const (
	// paceTick is how often requests are sent.
	paceTick = time.Millisecond
	// paceLost is after how long a request has no answer.
	paceLost = 2 * time.Second
	// paceMaxInFlight bounds the requests in flight, so that a service that stalls is not flooded.
	paceMaxInFlight = 4096
)

// pace sends requests at a steady rate. Unlike a closed loop it does not send less while a service is slow. The time of an
// answer is measured from when its request was due.
type pace struct {
	nc    *nats.Conn
	inbox string
	body  []byte // with the digits of the key at offset at
	at    int
	keys  int
	rate  float64
	began time.Time

	mu       sync.Mutex
	inFlight int64
	now      paced
	stopped  chan struct{}
}

// paced counts the answers of one part of a pace.
type paced struct {
	answered, failed, skipped int64
	took                      *hdrhistogram.Histogram
}

func newPaced() paced { return paced{took: hdrhistogram.New(1, patience.Microseconds(), 3)} }

func (p paced) p99() float64 { return float64(p.took.ValueAtQuantile(99)) }
func (p paced) p50() float64 { return float64(p.took.ValueAtQuantile(50)) }

// newPace starts a pace, which ends with ctx. Then inFlight counts the requests that had no answer.
func (d *testbed) newPace(ctx context.Context, keys int, rate float64, window string) (*pace, error) {
	const digits = "0000000000"
	nc, err := nats.Connect(d.nats)
	if err != nil {
		return nil, err
	}
	p := &pace{nc: nc, inbox: nats.NewInbox() + ".", keys: keys, rate: rate, began: time.Now(), now: newPaced(), stopped: make(chan struct{})}
	if p.body, err = json.Marshal(limits.Per("bench:"+digits, 1_000_000_000, window)); err != nil {
		return nil, err
	}
	p.at = bytes.Index(p.body, []byte(digits))
	if _, err := nc.Subscribe(p.inbox+"*", p.answered); err != nil {
		return nil, err
	}
	go p.run(ctx)
	return p, nil
}

func (p *pace) run(ctx context.Context) {
	defer close(p.stopped)
	defer p.nc.Close()
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			for last := time.Now(); p.waiting() && time.Since(last) < paceLost; {
				<-tick.C
			}
			return
		case <-tick.C:
		}
		due := time.Since(p.began)
		for ; float64(sent) < due.Seconds()*p.rate; sent++ {
			p.send(float64(sent) / p.rate)
		}
		_ = p.nc.Flush()
	}
}

func (p *pace) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight > 0
}

// send sends a request for a random key; due is in seconds since the start.
func (p *pace) send(due float64) {
	p.mu.Lock()
	full := p.inFlight >= paceMaxInFlight
	if full {
		p.now.skipped++
	} else {
		p.inFlight++
	}
	p.mu.Unlock()
	if full {
		return
	}
	copy(p.body[p.at:], fmt.Sprintf("%010d", rand.IntN(p.keys)))
	_ = p.nc.PublishRequest(limits.SubjectConsume, p.inbox+strconv.FormatInt(int64(due*1e6), 10), p.body)
}

func (p *pace) answered(m *nats.Msg) {
	due, err := strconv.ParseInt(m.Subject[len(p.inbox):], 10, 64)
	if err != nil {
		return
	}
	took := max(1, time.Since(p.began).Microseconds()-due)
	ok := bytes.Contains(m.Data, []byte(`"allowed":true`)) && !bytes.Contains(m.Data, []byte(`"degraded":true`))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	p.now.answered++
	if !ok {
		p.now.failed++
	}
	_ = p.now.took.RecordValue(min(took, patience.Microseconds()))
}

// take returns the counts since the last call.
func (p *pace) take() paced {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.now
	p.now = newPaced()
	return was
}
