package bus

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// TestAllDeadLettersCanBeListed: as many unreadable messages are kept as nobody can read on one page, and deliveries come
// between them.
func TestAllDeadLettersCanBeListed(t *testing.T) {
	t.Parallel()
	for _, deliveries := range []int{0, 7, 300} {
		store, nc, _ := alertDesk(t)
		for n := range deliveries {
			store.deliver(fmt.Sprintf("a%03d", n), "chat", alerts.DeliveryDead)
		}
		const messages = 2*poisonShown + 5
		for sequence := range uint64(messages) {
			store.must(store.KeepPoison(t.Context(), alerts.Poison{Sequence: 1 + sequence, Subject: limits.EventWarning, Reason: "bad", Data: []byte("{")}))
		}
		client := limits.NewClient(nc, limits.Timeout(time.Minute))
		dead, poison := map[string]bool{}, []uint64{}
		for request, last := (limits.DeadRequest{Max: 60}), false; !last; last = request.After == "" {
			page, err := client.DeadLetters(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range page.Deliveries {
				dead[d.ID] = true
			}
			for _, p := range page.Poison {
				poison = append(poison, p.Sequence)
			}
			request.After = page.Next
		}
		slices.Reverse(poison) // the last comes first
		if len(dead) != deliveries || len(poison) != messages || !slices.IsSorted(poison) || poison[0] != 1 {
			t.Errorf("%d deliveries and %d messages on the pages; want %d and %d", len(dead), len(poison), deliveries, messages)
		}
	}
}

func TestDeadLettersAreReplayed(t *testing.T) {
	t.Parallel()
	store, nc, sender := alertDesk(t)
	for n := range 4 {
		store.deliver(fmt.Sprintf("a%d", n), []string{"chat", "pager"}[n%2], alerts.DeliveryDead)
	}
	store.disable("pager", "chat")
	for sequence := range uint64(2) { // a page of one has the last
		store.must(store.KeepPoison(t.Context(), alerts.Poison{Sequence: 4 + sequence, Subject: limits.EventWarning, Reason: "bad", Data: []byte{0xff, '{'}}))
	}
	poison := `"poison":[{"sequence":5,"subject":"limits.warning","reason":"bad","data":"/3s=","at":1800000000000}]`
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsDead, `{"max":1}`, `{"deliveries":[{"id":"a0.raised/chat","channel":"chat","type":"alerts.raised","user":"7","title":"t",` +
			`"state":"dead","attempts":1,"error":"500","createdAt":1800000000000,"endedAt":1800000000000}],` + poison +
			`,"next":"a0.raised/chat poison:1800000000000/5"}`},
		{limits.SubjectAlertsDead, `{"channel":"none"}`, `{"deliveries":[],"poison":[]}`},
		{limits.SubjectAlertsDead, `{"after":"a3.raised/pager"}`, `{"deliveries":[],"poison":[]}`},
		{limits.SubjectAlertsDead, `{"max":201}`, badField("invalid_max", "max")},
		{limits.SubjectAlertsDead, `{"id":"x"}`, badField("unknown_field", "id")},
		{limits.SubjectAlertsReplay, `{}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsReplay, `{"all":false}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsReplay, `{"all":true,"channel":"pager"}`, badField("mixed_forms", "id")},
		{limits.SubjectAlertsReplay, `{"id":"a9.raised/chat"}`, badField("unknown_delivery", "id") + `"message":"no dead letter with id \"a9.raised/chat\"; `},
		{limits.SubjectAlertsReplay, `{"channel":"none"}`, badField("unknown_channel", "channel") + `"message":"no channel named \"none\" here; `},
		{limits.SubjectAlertsReplay, `{"max":1}`, badField("unknown_field", "max")},
		{limits.SubjectAlertsReplay, `{"id":"a0.raised/chat"}`, `{"replayed":1}`},
	})
	if disabled := store.disabled(); disabled != "pager" || sender.woken != 1 || sender.resumed != "chat " {
		t.Errorf("disabled %s, resumed %s, woken %d times", disabled, sender.resumed, sender.woken)
	}
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsReplay, `{"channel":"pager"}`, `{"replayed":2}`},
		{limits.SubjectAlertsReplay, `{"channel":"mail"}`, `{"replayed":0}`},
		{limits.SubjectAlertsReplay, `{"all":true}`, `{"replayed":1}`},
	})
	if disabled := store.disabled(); disabled != "" || sender.resumed != "chat pager mail nats pager chat mail " {
		t.Errorf("disabled %s, resumed %s", disabled, sender.resumed)
	}
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsReplay, `{"all":true}`, `{"replayed":0}`},
	})
}

// TestDeadLettersOfARemovedChannelStay: nobody could deliver them, so they would be dead again.
func TestDeadLettersOfARemovedChannelStay(t *testing.T) {
	t.Parallel()
	store, nc, _ := alertDesk(t)
	store.deliver("a0", "gone", alerts.DeliveryDead)
	store.deliver("a1", "chat", alerts.DeliveryDead)
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsReplay, `{"id":"a0.raised/gone"}`, badField("unknown_channel", "channel") + `"message":"no channel named \"gone\" here; `},
		{limits.SubjectAlertsReplay, `{"all":true}`, `{"replayed":1}`},
		{limits.SubjectAlertsDead, `{}`, `{"deliveries":[{"id":"a0.raised/gone",`},
	})
}

// TestCursorsOfDeadLetters are the id of a delivery, the place of an unreadable message, or both. Whatever else is there, it
// is an id.
func TestCursorsOfDeadLetters(t *testing.T) {
	t.Parallel()
	for after, want := range map[string]struct {
		delivery string
		begin    poisonCursor
	}{
		"a.raised/chat":            {"a.raised/chat", noPoison},
		"poison:5/7":               {"", poisonCursor{5, 7}},
		"a.raised/chat poison:5/7": {"a.raised/chat", poisonCursor{5, 7}},
		"5/7":                      {"5/7", noPoison},
		"a/poison:x/7":             {"a/poison:x/7", noPoison},
		"a/poison:5/x":             {"a/poison:5/x", noPoison},
		"a/poison:":                {"a/poison:", noPoison},
	} {
		if delivery, begin := parseDeadCursor(after); delivery != want.delivery || begin != want.begin {
			t.Errorf("%q: %q, %v", after, delivery, begin)
		}
	}
}
