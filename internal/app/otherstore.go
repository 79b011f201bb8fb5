package app

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
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
	stores, heard := bus.NewStoreStates(l.events, l.log), make(chan bus.StoreState, maxOtherStores)
	if err := listen(l, "store announcements", stores, func(s bus.StoreState) { l.heardStore(s, heard) }); err != nil {
		return err
	}
	announce := func(s bus.StoreState) {
		if l.events.IsConnected() {
			stores.Send(s)
		}
	}
	l.background("store announcements", func(ctx context.Context) { l.announceStore(ctx, announce, heard) })
	return nil
}

// heardStore passes on an announcement that has to be looked at. An answer to $SRV.PING has an id, too, and goes where who
// asks says: it is not the name of a store.
func (l *limiter) heardStore(s bus.StoreState, heard chan<- bus.StoreState) {
	kind, _, _ := strings.Cut(s.ID, " ")
	if kind != "postgres" && kind != "sqlite" || s.ID == l.identity() && s.Token == 0 {
		return
	}
	select {
	case heard <- s:
	default: // others will be announced again
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
func (l *limiter) announceStore(ctx context.Context, announce func(bus.StoreState), heard <-chan bus.StoreState) {
	announce(l.storeState(ctx))
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	known, checked := otherStores{logged: map[string]time.Time{}}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := l.identifyStore(ctx); err != nil {
				tick.Reset(checkPause)
				continue
			}
			announce(l.storeState(ctx))
			tick.Reset(announceEvery)
		case first := <-heard:
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(checked.Add(checkPause))):
			}
			checked = time.Now()
			all := append(pending(heard), first)
			moved, err := l.identifyStore(ctx)
			// What was heard may be from before the move. A limiter that still uses another store answers.
			if err != nil { // a connection that the move has ended, or the store is away
				tick.Reset(checkPause)
			} else if moved || l.judge(ctx, all, &known) {
				announce(l.storeState(ctx))
			}
		}
	}
}

// journaled is a store whose journal tells it from a copy of it that goes its own way.
type journaled interface {
	LastJournalRow(ctx context.Context) (seq, token int64, err error)
	OtherJournal(ctx context.Context, seqs, tokens []int64) (bool, error)
}

// storeState is what this limiter announces.
func (l *limiter) storeState(ctx context.Context) bus.StoreState {
	s := bus.StoreState{ID: l.identity()}
	if j, ok := l.store.(journaled); ok {
		ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
		defer cancel()
		if seq, token, err := j.LastJournalRow(ctx); err == nil {
			s.Seq, s.Token = seq, token
		}
	}
	return s
}

// pending takes what is in the channel.
func pending(heard <-chan bus.StoreState) (all []bus.StoreState) {
	for {
		select {
		case s := <-heard:
			all = append(all, s)
		default:
			return all
		}
	}
}

// otherStores is what is known of other stores.
type otherStores struct {
	// logged says when each was last logged.
	logged map[string]time.Time
	// suspected is when a copy of the own store was first heard of, and suspectedAgain when it was last.
	suspected, suspectedAgain time.Time
}

// judge notes and logs the announced stores that are not the own one, and reports whether it has logged one.
func (l *limiter) judge(ctx context.Context, heard []bus.StoreState, known *otherStores) (news bool) {
	maps.DeleteFunc(known.logged, func(_ string, at time.Time) bool { return time.Since(at) > announceEvery*3/4 })
	own := l.identity()
	if l.hasCopy(ctx, heard, known) {
		heard = append(heard, bus.StoreState{ID: "a copy of it"})
	}
	for _, s := range heard {
		if s.ID == own {
			continue
		}
		now := time.Now()
		l.otherStoreSeen.Store(&now)
		if _, logged := known.logged[s.ID]; logged || len(known.logged) == maxOtherStores {
			continue
		}
		known.logged[s.ID], news = now, true
		l.log.Error("another limiter on this NATS uses a different store: each of them admits up to the limit; "+
			"give all of them the same DATABASE_URL, or each its own NATS server or account", "own", own, "other", s.ID)
	}
	return news
}

// hasCopy reports whether announcements of stores with the name of the own one are of a copy of it. One of them proves
// nothing: its row may have been lost since, when a backup was restored. So it takes one more, after a while.
func (l *limiter) hasCopy(ctx context.Context, heard []bus.StoreState, known *otherStores) bool {
	var seqs, tokens []int64
	for _, s := range heard {
		if s.ID == l.identity() && s.Token != 0 {
			seqs, tokens = append(seqs, s.Seq), append(tokens, s.Token)
		}
	}
	j, ok := l.store.(journaled)
	if !ok || seqs == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	if other, err := j.OtherJournal(ctx, seqs, tokens); err != nil || !other {
		return false
	}
	if time.Since(known.suspectedAgain) > otherStoreTTL {
		known.suspected = time.Now()
	}
	known.suspectedAgain = time.Now()
	return time.Since(known.suspected) >= announceEvery/2
}
