package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// TestCellsOfRows: what ends right now is over, and what is not known is a dash.
func TestCellsOfRows(t *testing.T) {
	t.Parallel()
	s := &session{now: func() time.Time { return noon }}
	now := noon.UnixMilli()
	over := func(at int64) *limits.Override {
		o := new(limits.Override)
		o.ExpiresAt = at
		return o
	}
	for _, c := range []struct{ got, want any }{
		{keyRow(s, &limits.APIKey{ExpiresAt: now + 1})[3], "active"},
		{keyRow(s, &limits.APIKey{ExpiresAt: now, RevokedAt: now})[3], "revoked"},
		{overrideRow(s, over(now))[4], "2026-03-01 12:00:00 (over)"},
		{overrideRow(s, over(now+1000))[4], "2026-03-01 12:00:01"},
		{overrideRow(s, over(0))[4], "-"},
		{overrideRow(s, &limits.Override{Unused: true})[4], "- (unused)"},
		{took(&limits.JobRun{StartedAt: 1}), "-"},
		{took(&limits.JobRun{StartedAt: 1, EndedAt: 1501}), "1.5s"},
		{note(&limits.JobRun{Note: "removed 500", Error: "down"}), "removed 500: down"},
		{note(&limits.JobRun{Error: "down"}), "down"},
		{shellWord("a b"), `"a b"`},
		{shellWord("a$b"), `$'a$b'`}, // in double quotes a shell would replace these
		{shellWord("a`b"), "$'a`b'"},
		{shellWord("a!b'\n"), `$'a!b\'\n'`},
		{timeFlag(noon).checkFuture(s) == nil, false},
		{timeFlag(noon.Add(time.Millisecond)).checkFuture(s), error(nil)},
		{new(timeFlag).UnmarshalText([]byte("1970-01-01T00:00:00Z")) == nil, false}, // 0 would mean no time
	} {
		if c.got != c.want {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}

// TestDateIsItsFirstInstant in the zone, also where the clock skips or repeats its midnight.
func TestDateIsItsFirstInstant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, text, want string }{
		{"Europe/Berlin", "2027-01-31", "2027-01-30T23:00:00Z"},
		{"America/Santiago", "2027-09-05", "2027-09-05T04:00:00Z"},
		{"America/Havana", "2027-03-14", "2027-03-14T05:00:00Z"},
		{"America/Havana", "2027-11-07", "2027-11-07T04:00:00Z"},
		{"Atlantic/Azores", "2027-03-28", "2027-03-28T01:00:00Z"},
		{"Africa/Cairo", "2027-04-30", "2027-04-29T22:00:00Z"},
		{"America/Santiago", "2027-09-05T00:00:00-04:00", "2027-09-05T04:00:00Z"},
		{"America/Santiago", "2027-09-05T12:34:56.789Z", "2027-09-05T12:34:56.789Z"},
	} {
		local, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := parseTime(c.text, local); !ok || at.UTC().Format(time.RFC3339Nano) != c.want {
			t.Errorf("%s in %s is %s, %t; want %s", c.text, c.zone, at.UTC(), ok, c.want)
		}
	}
}

// TestPreviewRowsBeginWithTheMostAlerts, then by rule and user.
func TestPreviewRowsBeginWithTheMostAlerts(t *testing.T) {
	t.Parallel()
	var got []string
	for _, r := range previewRows([]limits.Alert{{Rule: "b", User: "1", Notice: "held"}, {Rule: "a", User: "2"}, {Rule: "a", User: "1"},
		{Rule: "c", User: "1", Denied: 2}, {Rule: "c", User: "1", Denied: 3, Notice: "held"}}) {
		got = append(got, fmt.Sprint(r.rule, r.user, " ", r.alerts, r.sent, r.held, r.denied))
	}
	if want := "[c1 2 1 1 5 a1 1 1 0 0 a2 1 1 0 0 b1 1 0 1 0]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestKeyExpiresAfterSpan from now.
func TestKeyExpiresAfterSpan(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectKeysExpire, func(request string) *nats.Msg {
		var r limits.ExpireKeyRequest
		if err := json.Unmarshal([]byte(request), &r); err != nil || r.ExpiresAt != noon.Add(14*24*time.Hour).UnixMilli() {
			t.Errorf("%s, %v", request, err)
		}
		return text(`{"key":{"id":"4fJq01Zx","user":"7"}}`)("")
	})
	limiter(t, "keys", "expire", "4fJq01Zx", "--in", "14d", "--nats-url", url).want(t, exitDone, "API key 4fJq01Zx of user 7", "")
}

func TestExpiredKeyIsListedAsSuch(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectKeysList, text(fmt.Sprintf(`{"keys":[{"id":"4fJq01Zx","user":"7","expiresAt":%d}]}`, noon.UnixMilli())))
	limiter(t, "keys", "list", "--nats-url", url).want(t, exitDone, "4fJq01Zx  7     -     expired", "")
}

// TestRunningJobIsNoError: it goes on after the answer.
func TestRunningJobIsNoError(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectJobsRun, text(`{"run":{"job":"expire","replica":"a","outcome":"running"}}`))
	limiter(t, "jobs", "run", "expire", "--nats-url", url).want(t, exitDone, "expire is running on a", "")
}

// TestResetOfOneKeyDoesNotAsk, also on a terminal.
func TestResetOfOneKeyDoesNotAsk(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectReset, text(`{"reset":1}`))
	i := &invocation{tty: true}
	i.run(t, "reset", "k", "--nats-url", url).want(t, exitDone, "reset 1 counter\n", "")
}

func TestPageOfDeadLettersNamesTheNext(t *testing.T) {
	t.Parallel()
	url := respond(t, limits.SubjectAlertsDead, text(`{"deliveries":[{"id":"x/pager","state":"dead"}],"next":"x/pager"}`))
	limiter(t, "alerts", "dead", "--nats-url", url).want(t, exitDone, "more: --after=\"x/pager\"\n", "")
}
