package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/outage"
)

// Config configures a [Recorder].
type Config struct {
	// Store keeps what is recorded; required.
	Store Store
	// Logger is required.
	Logger *slog.Logger
	// Every is how often is written, 5 s unless set.
	Every time.Duration
	// Queue is how many logged requests wait at most, 8192 unless set. More are dropped.
	Queue int
	// Pending is how many counts wait at most for a store that fails, 65536 unless set. More are dropped.
	Pending int
}

// writeRows is how many rows are written in one transaction: few enough that one on SQLite, where decisions wait for
// it, takes a few milliseconds.
const writeRows = 256

// fewCounts is how many counts are written without waiting for more; longest is how long more of them wait: the more there
// are, the more it saves to write a minute in fewer parts. It divides a minute, so that a minute holds what happened in it, and is
// a multiple of what Every is unless set.
const (
	fewCounts = 1024
	longest   = 15 * time.Second
)

// writeTimeout bounds one write.
const writeTimeout = 3 * time.Second

// Recorder takes in what happens and writes it to the store from time to time. Its methods may be called at the same
// time, and do not block.
type Recorder struct {
	cfg      Config
	tally    *tally
	requests chan Request
	// pending are counts that were taken from the tally and not written yet, each once, in order.
	pending []Count
	// log holds requests that were taken from the queue and not written yet.
	log []Request
	// began is when the counts began that are in the tally.
	began   time.Time
	failing *outage.Log

	other, lostCounts, lostRequests, malformed atomic.Int64

	stop    context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
}

// NewRecorder starts one; Close writes what is left and stops it.
func NewRecorder(cfg Config) (*Recorder, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("record usage: Store is missing")
	case cfg.Logger == nil:
		return nil, errors.New("record usage: Logger is missing")
	}
	cfg.Every = cmp.Or(cfg.Every, 5*time.Second)
	cfg.Queue = cmp.Or(cfg.Queue, 8192)
	cfg.Pending = cmp.Or(cfg.Pending, 65536)
	r := &Recorder{
		cfg: cfg, tally: newTally(), requests: make(chan Request, cfg.Queue), began: time.Now(), stopped: make(chan struct{}),
		failing: outage.New(cfg.Logger, slog.LevelWarn, "usage is not written: it waits in memory, as long as there is room", "usage is written again"),
	}
	r.stop, r.cancel = context.WithCancel(context.Background())
	go r.run()
	return r, nil
}

// Tally counts a decision; it is the engine's Tally.
func (r *Recorder) Tally(q *engine.Request, d *engine.Decision) { r.tally.add(q, d) }

// Log takes in a request for the log. One that finds no room is dropped, and counted.
func (r *Recorder) Log(q Request) {
	select {
	case r.requests <- q:
	default:
		r.lostRequests.Add(1)
	}
}

// Malformed counts a request for the log that could not be read.
func (r *Recorder) Malformed() { r.malformed.Add(1) }

// Losses is what was not recorded as it happened, since the start.
type Losses struct {
	// Other counts decisions that were counted without their key, because there were too many keys.
	Other int64
	// Counts are decisions, and Requests lines of the log, that were dropped; Malformed are lines that could not be read.
	Counts, Requests, Malformed int64
}

// Losses tells what was not recorded as it happened.
func (r *Recorder) Losses() Losses {
	return Losses{r.other.Load(), r.lostCounts.Load(), r.lostRequests.Load(), r.malformed.Load()}
}

// Close writes what is left, within ctx. Nothing may be told to the recorder afterwards.
func (r *Recorder) Close(ctx context.Context) error {
	r.cancel()
	select {
	case <-r.stopped:
	case <-ctx.Done():
		return fmt.Errorf("write usage: %w", ctx.Err())
	}
	r.takeCounts()
	err := r.flush(ctx)
	if err == nil {
		err = r.flush(ctx) // requests that had no room beside those that waited for the store
	}
	if err != nil {
		return fmt.Errorf("%w; lost: counts %d, requests %d", err, len(r.pending), len(r.log)+len(r.requests))
	}
	return nil
}

// run writes at whole multiples of Every, so that what is counted between two writes is of one minute, and when the tally
// is nearly full.
func (r *Recorder) run() {
	defer close(r.stopped)
	for {
		now := time.Now()
		timer := time.NewTimer(now.Truncate(r.cfg.Every).Add(r.cfg.Every).Sub(now))
		select {
		case <-r.stop.Done():
			timer.Stop()
			return
		case <-r.tally.full:
			timer.Stop()
			r.takeCounts()
		case <-timer.C:
			if r.due(time.Now()) {
				r.takeCounts()
			}
		}
		r.failing.Tried(r.flushSome())
	}
}

// flushSome writes no longer than until it is to be written again; what is left waits.
func (r *Recorder) flushSome() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Every)
	defer cancel()
	return r.flush(ctx)
}

// due tells whether what was counted is to be written.
func (r *Recorder) due(now time.Time) bool {
	return !now.Truncate(longest).Equal(r.began.Truncate(longest)) || r.tally.size() <= fewCounts
}

// takeCounts takes what was counted so far, to be written.
func (r *Recorder) takeCounts() {
	at := r.began.Truncate(time.Minute).UnixMilli()
	r.began = time.Now()
	r.tally.take(at, func(c Count) {
		if c.ID == (ID{}) {
			r.other.Add(c.Allowed + c.Denied)
		}
		r.pending = append(r.pending, c)
	})
	r.pending = inOrder(r.pending)
	if most := r.cfg.Pending; len(r.pending) > most {
		for _, c := range r.pending[most:] {
			r.lostCounts.Add(c.Allowed + c.Denied)
		}
		r.pending = slices.Delete(r.pending, most, len(r.pending))
	}
}

// inOrder sorts counts, and adds up those of one id and minute.
func inOrder(counts []Count) []Count {
	slices.SortFunc(counts, compareCounts)
	sums := counts[:0]
	for _, c := range counts {
		if n := len(sums); n > 0 && sums[n-1].At == c.At && sums[n-1].ID == c.ID {
			sums[n-1].add(&c)
			continue
		}
		sums = append(sums, c)
	}
	clear(counts[len(sums):])
	return sums
}

// flush writes the counts that were taken, and the requests, within ctx.
func (r *Recorder) flush(ctx context.Context) error {
	r.drain()
	return errors.Join(r.writeCounts(ctx), r.writeRequests(ctx))
}

// write runs one transaction within its time. unknown says that it failed, and may be stored all the same.
func (r *Recorder) write(ctx context.Context, add func(ctx context.Context) error) (unknown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = add(ctx)
	if unknown = errors.Is(err, engine.ErrCommitUnknown); unknown {
		err = fmt.Errorf("some may be stored or not, and is dropped rather than counted twice: %w", err)
	}
	return unknown, err
}

// drain takes requests from the queue, as many as it had when it began and no more than wait at most.
func (r *Recorder) drain() {
	for n := len(r.requests); n > 0 && len(r.log) < r.cfg.Queue; n-- {
		r.log = append(r.log, <-r.requests)
	}
}

// writeCounts writes a transaction at a time, the oldest minutes first. A write that failed may have been committed all
// the same; then its counts are lost to the doubt rather than counted twice, unless it is sure.
func (r *Recorder) writeCounts(ctx context.Context) (err error) {
	done := 0
	for some := range slices.Chunk(r.pending, writeRows) {
		var unknown bool
		unknown, err = r.write(ctx, func(ctx context.Context) error { return r.cfg.Store.AddUsage(ctx, some) })
		if err != nil && !unknown {
			break
		}
		done += len(some)
		if unknown {
			for _, c := range some {
				r.lostCounts.Add(c.Allowed + c.Denied)
			}
			break
		}
	}
	r.pending = slices.Delete(r.pending, 0, done)
	return err
}

// compareCounts is the order in which every worker locks the rows.
func compareCounts(a, b Count) int {
	if c := cmp.Compare(a.At, b.At); c != 0 {
		return c
	}
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.Policy, b.Policy), strings.Compare(a.User, b.User))
}

func (r *Recorder) writeRequests(ctx context.Context) error {
	for len(r.log) > 0 {
		n := min(len(r.log), writeRows)
		unknown, err := r.write(ctx, func(ctx context.Context) error { return r.cfg.Store.AddRequests(ctx, r.log[:n]) })
		if err != nil && !unknown {
			return err
		}
		if r.log = slices.Delete(r.log, 0, n); unknown {
			r.lostRequests.Add(int64(n))
			return err
		}
	}
	return nil
}
