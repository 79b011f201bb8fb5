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
	changedKeys := bus.NewAnnouncements(l.requests, bus.SubjectForgetKey, l.log)
	l.keys, err = keys.New(keys.Config{
		Store: l.store, Prefix: l.KeyPrefix, Broadcast: func(id string) { changedKeys.Send(bus.Announcement{ID: id}) },
	})
	if err != nil {
		return err
	}
	if err := listen(l, "announcements", changedKeys, func(a bus.Announcement) { l.keys.Forget(a.ID) }); err != nil {
		return err
	}
	changedOverrides := bus.NewAnnouncements(l.requests, bus.SubjectReadOverrides, l.log)
	l.overrides, err = overrides.New(overrides.Config{
		Store: l.store, Logger: l.log, Broadcast: func() { changedOverrides.Send(bus.Announcement{}) },
	})
	if err != nil {
		return err
	}
	if err := listen(l, "announcements", changedOverrides, func(bus.Announcement) { l.overrides.Wake() }); err != nil {
		return err
	}
	if err := l.overrides.Refresh(ctx); err != nil {
		return err
	}
	l.warnOfUnusedOverrides()
	l.background("overrides", l.overrides.Run)
	return nil
}

// listen applies what other workers send. The service ends the subscription before it stops itself; if the start failed there
// is no service, and the stop of this part ends it.
func listen[T any](l *limiter, part string, b *bus.Broadcast[T], apply func(T)) error {
	if err := b.Listen(apply); err != nil {
		return err
	}
	l.unsubscribes = append(l.unsubscribes, b.Close)
	l.onStop(part, func(context.Context) error { b.Close(); return nil })
	return nil
}
