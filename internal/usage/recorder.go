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
	// Every is how often counts and requests are written. Default 5 s.
	Every time.Duration
	// Keys is how many ids are counted by themselves in an hour, at most; the others are counted
	// together, without id. 0 counts all together.
	Keys int
	// Queue is how many logged requests may wait; further ones are dropped. When half of it is full, they are written before
	// Every is over. Default 8192.
	Queue int
	// Pending is how many counts may wait for a store that fails; further ones are dropped. Default
	// 65536.
	Pending int
}

// writeRows is how many rows one transaction writes: few enough that it takes only milliseconds on
// SQLite, where decisions wait for it.
const writeRows = 256

// Up to fewKeys counts are written at every interval; more of them wait until a writePeriod is
// over, because it saves work to write a minute in fewer parts. writePeriod divides a minute, so
// that a count belongs to the minute in which it happened, and is a multiple of the default of
// Every.
const (
	fewKeys     = 1024
	writePeriod = 15 * time.Second
)

// writeTimeout bounds one transaction.
const writeTimeout = 3 * time.Second

// Recorder takes in decisions and requests, and writes them to the store from time to time. Its
// methods do not block, apart from Close, and may be called concurrently.
type Recorder struct {
	cfg      Config
	tally    *tally
	ids      *cardinality
	requests chan Request
	// halfFull gets a value when the queue is half full.
	halfFull chan struct{}
	// pending are counts that were taken from the tally and are not written yet; each once, in order.
	pending []Count
	// logged are requests that were taken from the queue and are not written yet.
	logged []Request
	// began is when the counts in the tally began.
	began time.Time
	// told is the last hour, since 1970, of which the log tells that it has too many ids.
	told    int64
	failing *outage.Log

	other, lostCounts, lostRequests, malformed atomic.Int64

	stop    context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
}

// NewRecorder starts a recorder; Close writes what is left and stops it.
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
		cfg: cfg, tally: newTally(), ids: newCardinality(cfg.Keys), requests: make(chan Request, cfg.Queue), halfFull: make(chan struct{}, 1),
		began: time.Now(), stopped: make(chan struct{}),
		failing: outage.New(cfg.Logger, slog.LevelWarn, "cannot write usage; it is kept in memory while there is room", "usage is being written again"),
	}
	r.stop, r.cancel = context.WithCancel(context.Background())
	go r.run()
	return r, nil
}

// Tally counts a decision; it is for [engine.Config.Tally].
func (r *Recorder) Tally(q *engine.Request, d *engine.Decision) { r.tally.add(q, d) }

// Log takes a request for the log. If there is no room it is dropped, and counted as lost.
func (r *Recorder) Log(q Request) {
	select {
	case r.requests <- q:
	default:
		r.lostRequests.Add(1)
	}
	if len(r.requests) > r.cfg.Queue/2 {
		select {
		case r.halfFull <- struct{}{}:
		default:
		}
	}
}

// Malformed counts a log entry that could not be read.
func (r *Recorder) Malformed() { r.malformed.Add(1) }

// Losses counts what was not recorded as it happened, since the start.
type Losses struct {
	// Other counts decisions that were counted without their key, because there were too many keys
	// at a time, or in an hour.
	Other int64
	// Counts and Requests are decisions and log entries that were dropped; Malformed are entries
	// that could not be read.
	Counts, Requests, Malformed int64
}

// Losses returns what was not recorded as it happened.
func (r *Recorder) Losses() Losses {
	return Losses{r.other.Load(), r.lostCounts.Load(), r.lostRequests.Load(), r.malformed.Load()}
}

// Close writes what is left, within ctx, and stops the recorder. Nothing may be recorded afterwards.
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
		err = r.flush(ctx) // requests that did not fit beside those that waited for the store
	}
	if err != nil {
		return fmt.Errorf("%w; lost: counts %d, requests %d", err, len(r.pending), len(r.logged)+len(r.requests))
	}
	return nil
}

// run writes at whole multiples of Every, so that the counts of one write belong to one minute, and
// when the tally is nearly full or the queue is half full. If such a multiple passes during a write,
// the counts follow that write, which may be followed by others at once.
func (r *Recorder) run() {
	defer close(r.stopped)
	var failed error
	for {
		halfFull := r.halfFull
		now := time.Now()
		wait := now.Truncate(r.cfg.Every).Add(r.cfg.Every).Sub(now)
		switch {
		case failed != nil:
			halfFull = nil // a full queue would have a store that fails tried all the time
		case r.writeDue(now):
			wait = 0
		}
		timer := time.NewTimer(wait)
		select {
		case <-r.stop.Done():
			timer.Stop()
			return
		case <-r.tally.full:
			timer.Stop()
			r.takeCounts()
		case <-halfFull:
			timer.Stop()
		case <-timer.C:
		}
		if r.writeDue(time.Now()) {
			r.takeCounts()
		}
		failed = r.flushSome()
		r.failing.Tried(failed)
	}
}

// flushSome flushes for at most Every; the rest waits for the next time.
func (r *Recorder) flushSome() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Every)
	defer cancel()
	return r.flush(ctx)
}

// writeDue reports whether the tally is to be written: a multiple of Every has passed since it was, and if it has more than
// a few counts, one of writePeriod.
func (r *Recorder) writeDue(now time.Time) bool {
	passed := func(d time.Duration) bool { return !now.Truncate(d).Equal(r.began.Truncate(d)) }
	return passed(r.cfg.Every) && (passed(writePeriod) || r.tally.size() <= fewKeys)
}

// takeCounts moves the counts from the tally to pending.
func (r *Recorder) takeCounts() {
	at := r.began.Truncate(time.Minute).UnixMilli()
	r.began = time.Now()
	waiting := len(r.pending)
	r.tally.take(at, func(c Count) { r.pending = append(r.pending, c) })
	taken := r.ids.limit(sortAndSum(r.pending[waiting:]), at, r.began)
	if n := len(taken); n > 0 && taken[n-1].ID == (ID{}) {
		r.countOther(&taken[n-1])
	}
	r.pending = sortAndSum(r.pending[:waiting+len(taken)])
	if most := r.cfg.Pending; len(r.pending) > most {
		r.lose(r.pending[most:])
		r.pending = slices.Delete(r.pending, most, len(r.pending))
	}
}

// countOther counts decisions that are counted without id, and tells of it once an hour.
func (r *Recorder) countOther(c *Count) {
	r.other.Add(c.Allowed + c.Denied)
	if hour := c.At / time.Hour.Milliseconds(); hour > r.told && r.cfg.Keys > 0 {
		r.told = hour
		r.cfg.Logger.Warn("more keys than usage has room for in an hour; the busiest are counted by themselves, the rest as other keys (--usage-keys)",
			"keys", r.cfg.Keys)
	}
}

// lose counts the decisions that are dropped with counts.
func (r *Recorder) lose(counts []Count) {
	for _, c := range counts {
		r.lostCounts.Add(c.Allowed + c.Denied)
	}
}

// sortAndSum sorts counts, and adds up those of one id and minute.
func sortAndSum(counts []Count) []Count {
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

// flush writes pending counts, the oldest minutes first, and queued requests, within ctx.
func (r *Recorder) flush(ctx context.Context) error {
	r.drainQueue()
	return errors.Join(
		write(ctx, &r.pending, r.cfg.Store.AddUsage, r.lose),
		write(ctx, &r.logged, r.cfg.Store.AddRequests, func(lost []Request) { r.lostRequests.Add(int64(len(lost))) }))
}

// write moves waiting rows to the store, one transaction at a time. If it is unknown whether one was
// committed, its rows are lost rather than perhaps counted twice.
func write[T any](ctx context.Context, waiting *[]T, add func(context.Context, []T) error, lose func([]T)) error {
	done := 0
	defer func() { *waiting = slices.Delete(*waiting, 0, done) }()
	for some := range slices.Chunk(*waiting, writeRows) {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		err := add(ctx, some)
		cancel()
		if err != nil && !errors.Is(err, engine.ErrCommitUnknown) {
			return err
		}
		if done += len(some); err != nil {
			lose(some)
			return fmt.Errorf("some usage may already be stored, so it is dropped rather than counted twice: %w", err)
		}
	}
	return nil
}

// drainQueue moves requests from the queue to logged: as many as the queue has now, and up to Queue
// of them in logged.
func (r *Recorder) drainQueue() {
	for n := len(r.requests); n > 0 && len(r.logged) < r.cfg.Queue; n-- {
		r.logged = append(r.logged, <-r.requests)
	}
}

// compareCounts is the order in which every worker locks the rows of a store.
func compareCounts(a, b Count) int {
	if c := cmp.Compare(a.At, b.At); c != 0 {
		return c
	}
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.Policy, b.Policy), strings.Compare(a.User, b.User))
}
