package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
)

// TestOverrideChangesAreLogged, with the subject: nothing else is left of an override that was
// replaced or deleted.
func TestOverrideChangesAreLogged(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	const id = `{"policy":"p","name":"n","subject":"api:user:7"`
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectOverridesSet, id + `,"limit":5,"window":"60s","burst":0,"expiresAt":4000000000000,"reason":"r","by":"ann"}`,
			`msg="override set" policy=p name=n subject=api:user:7 limit=5 window=60s burst=0 until=2096-10-02T07:06:40Z by=ann reason=r`},
		{limits.SubjectOverridesSet, id + `,"unlimited":true,"reason":"r"}`,
			`msg="override set" policy=p name=n subject=api:user:7 unlimited=true until=deleted by="" reason=r`},
		{limits.SubjectOverridesDelete, id + `}`, `msg="override deleted" policy=p name=n subject=api:user:7 found=true`},
	} {
		ask(t, nc, c.subject, c.body)
		if said := w.log.String(); !strings.Contains(said, c.want) {
			t.Errorf("%s: want %s\n%s", c.body, c.want, said)
		}
	}
}

// TestKeyChangesAreLogged, with whose key it is.
func TestKeyChangesAreLogged(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	id := createKey(t, nc, `{"user":"ann"}`).Key.ID
	ask(t, nc, limits.SubjectKeysExpire, `{"id":"`+id+`","expiresAt":4000000000000}`)
	ask(t, nc, limits.SubjectKeysRevoke, `{"id":"`+id+`"}`)
	said := w.log.String()
	for _, want := range []string{"created", "expiry set", "revoked"} {
		if n := strings.Count(said, fmt.Sprintf(`msg="API key %s" id=%s user=ann`, want, id)); n != 1 {
			t.Errorf("%s: said %d times\n%s", want, n, said)
		}
	}
}

// TestAlertChangesAreLogged: silences with what they silence, even if that is neither a rule nor a policy, and what was sent
// again.
func TestAlertChangesAreLogged(t *testing.T) {
	t.Parallel()
	log := new(logBuffer)
	_, nc, _ := alertDesk(t, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	ask(t, nc, limits.SubjectAlertsSilence, `{"user":"acme-*","key":"api:*","reason":"move","for":60000,"by":"ann"}`)
	ask(t, nc, limits.SubjectAlertsReplay, `{"channel":"chat"}`)
	said := log.String()
	if !strings.Contains(said, `msg="dead letters replayed" delivery="" channel=chat count=0`) {
		t.Error(said)
	}
	if !strings.Contains(said, `rule="" policy="" key=api:* user=acme-* for=1m0s by=ann reason=move`) {
		t.Error(said)
	}
}
