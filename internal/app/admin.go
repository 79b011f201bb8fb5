package app

import (
	"context"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
)

// startAdmin starts API keys and overrides, whose changes workers announce to each other. Like broadcasts, the
// announcements go over the connection of the requests: the server gets them before the answer to the change.
func (l *limiter) startAdmin(ctx context.Context) (err error) {
	changedKeys := bus.NewAnnouncer(l.requests, bus.SubjectForgetKey, l.log)
	l.keys, err = keys.New(keys.Config{Store: l.store, Prefix: l.KeyPrefix, Broadcast: changedKeys.Announce})
	if err != nil {
		return err
	}
	if err := l.listen(changedKeys, l.keys.Forget); err != nil {
		return err
	}
	changedOverrides := bus.NewAnnouncer(l.requests, bus.SubjectReadOverrides, l.log)
	l.overrides, err = overrides.New(overrides.Config{
		Store: l.store, Logger: l.log, Broadcast: func() { changedOverrides.Announce("") },
	})
	if err != nil {
		return err
	}
	if err := l.listen(changedOverrides, func(string) { l.overrides.Wake() }); err != nil {
		return err
	}
	if err := l.overrides.Refresh(ctx); err != nil {
		return err
	}
	l.warnOfUnusedOverrides()
	l.background("overrides", l.overrides.Run)
	return nil
}

// listen applies the announcements of other workers.
func (l *limiter) listen(a *bus.Announcer, apply func(id string)) error {
	if err := a.Listen(apply); err != nil {
		return err
	}
	l.onStopUnsubscribe("announcements", a.Close)
	return nil
}

// onStopUnsubscribe registers how a subscription ends. The service runs unsubscribe before it stops itself; if the start
// failed there is no service, and the stop of this part runs it.
func (l *limiter) onStopUnsubscribe(part string, unsubscribe func()) {
	l.unsubscribes = append(l.unsubscribes, unsubscribe)
	l.onStop(part, func(context.Context) error { unsubscribe(); return nil })
}
