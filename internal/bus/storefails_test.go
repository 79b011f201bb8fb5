package bus

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// failingSQLite is a store that works until fail is called: then it has no tables.
type failingSQLite struct {
	*sqlite.Store
	fail func()
}

func sqliteThatFails(t *testing.T) failingSQLite {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return failingSQLite{s, func() {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for _, table := range []string{"api_keys", "overrides", "usage_counts", "usage_requests", "alerts", "alert_silences", "alert_deliveries", "alert_channels"} {
			if _, err := db.ExecContext(t.Context(), "DROP TABLE "+table); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

// TestRequestsToAStoreThatFailsAreRefused: no answer says that there is nothing, or that something was changed, wherever the
// request is read. The log names each endpoint once.
func TestRequestsToAStoreThatFailsAreRefused(t *testing.T) {
	t.Parallel()
	for name, viaNATSGo := range map[string]bool{"where it is read": false, "through nats.go": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, log := sqliteThatFails(t), new(logBuffer)
			registry := keyRegistry(t, store.Store)
			key, k, err := registry.Create(t.Context(), keys.Key{User: "7"})
			if err != nil {
				t.Fatal(err)
			}
			table, err := overrides.New(overrides.Config{Store: store.Store})
			if err != nil {
				t.Fatal(err)
			}
			rules := &alerts.Rules{Rules: []alerts.Rule{{Name: "denials"}}, Channels: []alerts.ChannelSpec{{Name: "nats", Kind: alerts.ChannelNATS}}}
			s, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) {
				if viaNATSGo {
					c.Conn = dial(t, c.Conn.ConnectedUrl())
				}
				c.Keys, c.Overrides, c.Usage, c.Logger = registry, table, store.Store, slog.New(slog.NewTextHandler(log, nil))
				c.Alerts = &alerts.Admin{Store: store.Store, Rules: func() *alerts.Rules { return rules }, Sender: new(deskSender),
					Target: func(*alerts.ChannelSpec) string { return "" }}
			})
			store.fail()
			const override = `"policy":"p","name":"n","subject":"a"`
			asks := []struct{ subject, body string }{
				{limits.SubjectVerify, `{"apiKey":"` + key + `"}`},
				{limits.SubjectKeysCreate, `{"user":"7"}`},
				{limits.SubjectKeysList, `{}`},
				{limits.SubjectKeysRevoke, `{"id":"` + k.ID + `"}`},
				{limits.SubjectKeysExpire, `{"id":"` + k.ID + `","expiresAt":0}`},
				{limits.SubjectOverridesSet, `{` + override + `,"unlimited":true,"reason":"r"}`},
				{limits.SubjectOverridesDelete, `{` + override + `}`},
				{limits.SubjectOverridesList, `{}`},
				{limits.SubjectTop, `{}`},
				{limits.SubjectUsageReport, `{"report":"traffic"}`},
				{limits.SubjectUsageReport, `{"report":"slowest"}`},
				{limits.SubjectUsageReport, `{"report":"errors"}`},
				{limits.SubjectAlertsList, `{}`},
				{limits.SubjectAlertsShow, `{"id":"a"}`},
				{limits.SubjectAlertsSilence, `{"rule":"denials","for":60000,"reason":"r"}`},
				{limits.SubjectAlertsUnsilence, `{"id":"a"}`},
				{limits.SubjectAlertsSilences, `{}`},
				{limits.SubjectAlertsDead, `{}`},
				{limits.SubjectAlertsReplay, `{"id":"a/nats"}`},
				{limits.SubjectAlertsTest, `{"channel":"nats"}`},
				{limits.SubjectAlertsChannels, `{}`},
			}
			for _, c := range asks {
				if got := ask(t, nc, c.subject, c.body).Data; !strings.HasPrefix(string(got), `{"error":{"code":"unavailable"`) {
					t.Errorf("%s %s: %s", c.subject, c.body, got)
				}
			}
			waitFor(t, "no request is pending", func() bool { return s.pending.Load() == 0 })
			for _, c := range asks {
				if n := strings.Count(log.String(), "endpoint="+c.subject+" "); n != 1 {
					t.Errorf("%d lines of %s\n%s", n, c.subject, log)
				}
			}
		})
	}
}

// full is a store of overrides that has no room.
type full struct{ overrides.Store }

func (full) PutOverride(context.Context, overrides.Override, int) error { return overrides.ErrFull }

// TestAnOverrideThatFindsNoRoomIsTheCallersToMend, and no failure of the store.
func TestAnOverrideThatFindsNoRoomIsTheCallersToMend(t *testing.T) {
	t.Parallel()
	table, err := overrides.New(overrides.Config{Store: full{}})
	if err != nil {
		t.Fatal(err)
	}
	_, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.Overrides = table })
	const want = `{"error":{"code":"too_many_overrides","field":"subject","message":"too many overrides, or too many globs for this limit; `
	m := ask(t, nc, limits.SubjectOverridesSet, `{"policy":"p","name":"n","subject":"a","limit":5,"reason":"r"}`)
	if !strings.HasPrefix(string(m.Data), want) {
		t.Errorf("%s", m.Data)
	}
}

// TestVerifiesThroughNATSGoAreAnsweredAlike, also those that cannot be read, and those that find no room to be looked up.
func TestVerifiesThroughNATSGoAreAnsweredAlike(t *testing.T) {
	t.Parallel()
	registry := keyRegistry(t, eachstore.SQLite(t, nil))
	key, _, err := registry.Create(t.Context(), keys.Key{User: "7"})
	if err != nil {
		t.Fatal(err)
	}
	clients, services := [2]*nats.Conn{}, [2]*Service{}
	for i := range clients {
		services[i], clients[i] = serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) {
			if c.Keys = registry; i == 1 {
				c.Conn = dial(t, c.Conn.ConnectedUrl())
			}
		})
	}
	for _, body := range []string{fmt.Sprintf(`{"apiKey":%q}`, key), fmt.Sprintf(`{"apiKey":%q}`, key[1:]),
		fmt.Sprintf(`{"apiKey":%q,"policy":"nobody's"}`, key), `{"apiKey":`, `{}`} {
		if read, sent := verify(t, clients[0], "%s", body), verify(t, clients[1], "%s", body); read != sent {
			t.Errorf("%s\n where it is read %s\n through nats.go  %s", body, read, sent)
		}
	}
	registry.Forget(strings.Split(key, "_")[1])
	for i, s := range services {
		for range cap(s.verifySlots) {
			s.verifySlots <- struct{}{}
		}
		if got := verify(t, clients[i], `{"apiKey":%q}`, key); !strings.HasPrefix(got, `{"error":{"code":"overloaded"`) {
			t.Error(got)
		}
		waitFor(t, "no request is pending", func() bool { return s.pending.Load() == 0 })
	}
}
