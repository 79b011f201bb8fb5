package app

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/postgres"
)

const (
	// announceEvery is how often a limiter announces the identity of its store.
	announceEvery = time.Minute
	// maxOtherStores bounds how many other stores are logged.
	maxOtherStores = 16
	// otherStoreTTL is how long the last announcement of another store makes this limiter not ready.
	otherStoreTTL = announceEvery * 3 / 2
)

var errOtherStore = errors.New("another limiter on this NATS uses a different store; the log names it")

// watchStores detects that another limiter answers the same requests from another store. NATS hands each request to
// one of them, so together they admit twice what a limit allows, and a key or an override of one is unknown to the
// other. The log says so once a minute while it lasts, and readiness fails.
func (l *limiter) watchStores(ctx context.Context) (err error) {
	if l.storeID, err = l.store.Identity(ctx); err != nil {
		return err
	}
	stores, others := bus.NewAnnouncer(l.events, bus.SubjectStore, l.log), make(chan string, maxOtherStores)
	err = l.listen(stores, func(id string) {
		if id == l.storeID || id == "" {
			return
		}
		select {
		case others <- id:
		default: // the others in the channel say the same
		}
	})
	if err != nil {
		return err
	}
	l.background("store announcements", func(ctx context.Context) { l.announceStore(ctx, stores, others) })
	return nil
}

// announceStore announces the store at once, every minute, and when another store is heard of, whose limiter may have
// started after the last announcement.
func (l *limiter) announceStore(ctx context.Context, stores *bus.Announcer, others <-chan string) {
	announce := func() {
		if l.events.IsConnected() {
			stores.Announce(l.storeID)
		}
	}
	announce()
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	logged := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			announce()
		case other := <-others:
			l.otherStoreSeen.Store(time.Now().UnixNano())
			maps.DeleteFunc(logged, func(_ string, at time.Time) bool { return time.Since(at) > announceEvery*3/4 })
			if _, known := logged[other]; known || len(logged) == maxOtherStores {
				continue
			}
			logged[other] = time.Now()
			l.log.Error("another limiter on this NATS uses a different store: each of them admits up to the limit; "+
				"give all of them the same DATABASE_URL, or each its own NATS server or account", "own", l.storeID, "other", other)
			announce()
		}
	}
}

// lead configures how the workers on one PostgreSQL agree on the one that decides. It is nil with SQLite, whose file
// has only one worker.
func (l *limiter) lead() *bus.LeadConfig {
	shared, ok := l.store.(*postgres.Store)
	if !ok {
		return nil
	}
	return &bus.LeadConfig{Store: l.storeID, Able: l.engine.Failure, Rest: shared.Rest}
}
