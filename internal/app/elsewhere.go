package app

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/postgres"
)

// storesEvery is how often a limiter tells the others which store it counts in, and storesMost how many others it knows.
const (
	storesEvery = time.Minute
	storesMost  = 16
	// storesGone is how long after it was last heard of another store counts no more.
	storesGone = storesEvery * 3 / 2
)

var errElsewhere = errors.New("another limiter on this NATS counts in another store; the log names it")

// watchStores says in the log, once a minute while it lasts, and to who asks whether this one is ready, that another limiter answers the
// same requests from another store. NATS hands each request to one of them, so together they admit what each limit allows twice, and a key or an
// override of one is unknown to the other.
func (l *limiter) watchStores(ctx context.Context) (err error) {
	if l.storeID, err = l.store.Identity(ctx); err != nil {
		return err
	}
	own := l.storeID
	stores, others := bus.NewAnnouncer(l.events, bus.SubjectStore, l.log), make(chan string, storesMost)
	err = l.listen(stores, func(id string) {
		if id == own || id == "" {
			return
		}
		select {
		case others <- id:
		default: // they are enough
		}
	})
	if err != nil {
		return err
	}
	l.background("announcements of the store", func(ctx context.Context) { l.tellStore(ctx, stores, own, others) })
	return nil
}

// tellStore announces the store at once, every minute, and when another is heard of, whose limiter may have come later.
func (l *limiter) tellStore(ctx context.Context, stores *bus.Announcer, own string, others <-chan string) {
	announce := func() {
		if l.events.IsConnected() {
			stores.Announce(own)
		}
	}
	announce()
	tick := time.NewTicker(storesEvery)
	defer tick.Stop()
	told := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			announce()
		case other := <-others:
			l.elsewhere.Store(time.Now().UnixNano())
			maps.DeleteFunc(told, func(_ string, at time.Time) bool { return time.Since(at) > storesEvery*3/4 })
			if _, known := told[other]; known || len(told) == storesMost {
				continue
			}
			told[other] = time.Now()
			l.log.Error("another limiter on this NATS counts in another store: each of them admits what a limit allows; "+
				"give all of them one DATABASE_URL, or each a NATS server or account of its own", "own", own, "other", other)
			announce()
		}
	}
}

// lead has one worker decide of those on one PostgreSQL. A file of SQLite has one worker.
func (l *limiter) lead() *bus.LeadConfig {
	shared, ok := l.store.(*postgres.Store)
	if !ok {
		return nil
	}
	return &bus.LeadConfig{Store: l.storeID, Able: l.engine.Failure, Rest: shared.Rest}
}
