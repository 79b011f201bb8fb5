package bus

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/overrides"
)

// mute is a store of overrides whose answers are lost.
type mute struct{ overrides.Store }

var errMute = errors.New("unexpected EOF")

func (mute) PutOverride(context.Context, overrides.Override, int) error { return errMute }
func (mute) DeleteOverride(context.Context, overrides.ID) (bool, error) { return false, errMute }
func (mute) OverrideChanges(context.Context, int64) (overrides.Changes, error) {
	return overrides.Changes{}, errMute
}

// TestUnconfirmedOverrideSaysWhatMayHold, and how to find out. The log has the store's error.
func TestUnconfirmedOverrideSaysWhatMayHold(t *testing.T) {
	t.Parallel()
	table, err := overrides.New(overrides.Config{Store: mute{}})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) {
		c.Overrides, c.Logger = table, slog.New(slog.NewTextHandler(&log, nil))
	})
	for subject, body := range map[string]string{
		limits.SubjectOverridesSet:    `{"policy":"p","name":"n","subject":"a","limit":5,"reason":"r"}`,
		limits.SubjectOverridesDelete: `{"policy":"p","name":"n","subject":"a"}`,
	} {
		const want = `{"error":{"code":"unavailable","message":"the store is unavailable; try again soon; the change may hold all the same, ` +
			`which limits.admin.overrides.list (limiter overrides list) shows, and may be made again"}}`
		if m := ask(t, nc, subject, body); string(m.Data) != want {
			t.Errorf("%s\n got %s\nwant %s", subject, m.Data, want)
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "unexpected EOF"); n != 2 {
		t.Errorf("the log has the cause %d times: %s", n, &log)
	}
}
