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
	// checkPause is between two looks at the own store because others were heard of: anybody who may announce a store
	// may do so any number of times. identifyTimeout bounds a look.
	checkPause, identifyTimeout = time.Second, 10 * time.Second
)

var errOtherStore = errors.New("another limiter on this NATS uses a different store; the log names it")

// watchStores detects that another limiter answers the same requests from another store. NATS hands each request to
// one of them, so together they admit twice what a limit allows, and a key or an override of one is unknown to the
// other. The log says so once a minute while it lasts, and readiness fails.
func (l *limiter) watchStores(ctx context.Context) error {
	if _, err := l.identifyStore(ctx); err != nil {
		return err
	}
	stores, others := bus.NewAnnouncer(l.events, bus.SubjectStore, l.log), make(chan string, maxOtherStores)
	err := l.listen(stores, func(id string) { l.heardStore(id, others) })
	if err != nil {
		return err
	}
	announce := func(id string) {
		if l.events.IsConnected() {
			stores.Announce(id)
		}
	}
	l.background("store announcements", func(ctx context.Context) { l.announceStore(ctx, announce, others) })
	return nil
}

// heardStore passes on an announcement of another store.
func (l *limiter) heardStore(id string, others chan<- string) {
	if id == l.identity() || id == "" {
		return
	}
	select {
	case others <- id:
	default: // the others in the channel say the same
	}
}

// identity is the store that was used when it was last identified.
func (l *limiter) identity() string { return l.storeID.Load().(string) }

// identifyStore finds out which store is used now, and whether it has changed: connections may lead to another
// PostgreSQL than before, which has been moved.
func (l *limiter) identifyStore(ctx context.Context) (moved bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	id, err := l.store.Identity(ctx)
	if err != nil {
		return false, err
	}
	before, known := l.storeID.Swap(id).(string)
	if moved = known && id != before; moved {
		l.log.Warn("the connections now lead to another database", "before", before, "now", id)
	}
	return moved, nil
}

// announceStore announces the store at once, every minute, when it has changed, and when another store is heard of,
// whose limiter may have started after the last announcement. While the store cannot be identified it says nothing.
func (l *limiter) announceStore(ctx context.Context, announce func(id string), others <-chan string) {
	announce(l.identity())
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	logged, checked := map[string]time.Time{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := l.identifyStore(ctx); err == nil {
				announce(l.identity())
			}
		case other := <-others:
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(checked.Add(checkPause))):
			}
			checked = time.Now()
			moved, err := l.identifyStore(ctx)
			// What was heard may be from before the move. A limiter that still uses another store answers.
			if heard := append(pending(others), other); err == nil && (moved || l.otherStores(heard, logged)) {
				announce(l.identity())
			}
		}
	}
}

// pending takes what is in the channel.
func pending(others <-chan string) (all []string) {
	for {
		select {
		case other := <-others:
			all = append(all, other)
		default:
			return all
		}
	}
}

// otherStores notes and logs those of the announced stores that are not the own one, and reports whether it has
// logged one.
func (l *limiter) otherStores(heard []string, logged map[string]time.Time) (news bool) {
	maps.DeleteFunc(logged, func(_ string, at time.Time) bool { return time.Since(at) > announceEvery*3/4 })
	for _, other := range heard {
		if other == l.identity() {
			continue
		}
		l.otherStoreSeen.Store(time.Now().UnixNano())
		if _, known := logged[other]; known || len(logged) == maxOtherStores {
			continue
		}
		logged[other], news = time.Now(), true
		l.log.Error("another limiter on this NATS uses a different store: each of them admits up to the limit; "+
			"give all of them the same DATABASE_URL, or each its own NATS server or account", "own", l.identity(), "other", other)
	}
	return news
}

// lead configures how the workers on one PostgreSQL agree on the one that decides. It is nil with SQLite, whose file
// has only one worker.
func (l *limiter) lead() *bus.LeadConfig {
	shared, ok := l.store.(*postgres.Store)
	if !ok {
		return nil
	}
	return &bus.LeadConfig{Store: l.identity, Able: l.engine.Failure, Rest: shared.Rest}
}
