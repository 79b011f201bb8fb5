package app

import (
	"context"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
)

// startAdmin starts what workers tell each other of: API keys and overrides. Announcements go over the connection of
// the requests for the reason that broadcasts do: they come before the answer to who made the change.
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
	l.background("overrides", l.overrides.Run)
	return nil
}

func (l *limiter) listen(a *bus.Announcer, apply func(id string)) error {
	if err := a.Listen(apply); err != nil {
		return err
	}
	l.listens("announcements", a.Close)
	return nil
}

// listens keeps what ends listening: the service needs it before its own end, and a start that fails has no service.
func (l *limiter) listens(to string, end func()) {
	l.listening = append(l.listening, end)
	l.onStop(to, func(context.Context) error { end(); return nil })
}
