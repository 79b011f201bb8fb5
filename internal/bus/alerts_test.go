package bus

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

const alertNow = 1_800_000_000_000

// alertStore is a real store with a clock that stands still, and helpers that store what events
// would.
type alertStore struct {
	*sqlite.Store
	t *testing.T
}

func openAlertStore(t *testing.T) *alertStore {
	t.Helper()
	store := eachstore.SQLite(t, func() time.Time { return time.UnixMilli(alertNow) })
	return &alertStore{Store: store, t: t}
}

func (s *alertStore) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// raise opens alerts about which somebody was notified.
func (s *alertStore) raise(all ...alerts.Alert) {
	s.t.Helper()
	taking := alerts.TakeQuery{}
	told := make([]alerts.NoticeDecision, len(all))
	for i := range all {
		taking.Events, taking.Groups = append(taking.Events, all[i].ID), append(taking.Groups, all[i].GroupID)
		told[i] = alerts.NoticeDecision{Alert: all[i].ID, Notice: alerts.Sent}
	}
	s.must(s.Take(s.t.Context(), taking, func(alerts.TakeState) (alerts.Changes, error) { return alerts.Changes{Raised: all}, nil }))
	_, err := s.SaveNotices(s.t.Context(), told)
	s.must(err)
}

// deliver puts a delivery into the outbox, with the state after its first try.
func (s *alertStore) deliver(alert, channel string, state alerts.DeliveryState) {
	s.t.Helper()
	m := alerts.Message{ID: alert + ".raised", Kind: alerts.KindRaised, User: "7", Title: "t", Data: json.RawMessage("{}")}
	id := m.ID + "/" + channel
	s.must(s.AddDelivery(s.t.Context(), alerts.Delivery{ID: id, Channel: channel, Message: m}))
	s.must(s.SaveResults(s.t.Context(), []alerts.DeliveryResult{{ID: id, State: state, DueAt: alertNow + 9, Error: "500", Counts: true}}))
}

func (s *alertStore) disable(channels ...string) {
	s.t.Helper()
	for _, c := range channels {
		s.must(s.DisableChannel(s.t.Context(), alerts.Disabled{Channel: c, Target: c + "'s target", Reason: "410 Gone"}))
	}
}

// disabled returns the names of the disabled channels.
func (s *alertStore) disabled() (names string) {
	s.t.Helper()
	all, err := s.DisabledChannels(s.t.Context())
	s.must(err)
	for _, d := range all {
		names += d.Channel
	}
	return names
}

// deskSender is the sender of an alertDesk: the circuit of pager is open, and mail is paused.
type deskSender struct {
	woken   int
	resumed string // the channels whose pause was ended
}

func (s *deskSender) Wake() { s.woken++ }

func (s *deskSender) Resume(channel string) { s.resumed += channel + " " }

func (*deskSender) State(channel string) alerts.ChannelState {
	return map[string]alerts.ChannelState{
		"pager": {Breaker: "open", LastError: "it answered 500"}, "mail": {PausedUntil: time.UnixMilli(alertNow + 600_000)},
	}[channel]
}

// alertDesk serves alerts without an engine, as an alerter does.
func alertDesk(t *testing.T, change ...func(*ServiceConfig)) (*alertStore, *nats.Conn, *deskSender) {
	t.Helper()
	store, sender := openAlertStore(t), new(deskSender)
	rules := &alerts.Rules{Rules: []alerts.Rule{{Name: "denials"}, {Name: "logins"}}, Channels: []alerts.ChannelSpec{
		{Name: "nats", Kind: alerts.ChannelNATS},
		{Name: "pager", Kind: alerts.ChannelWebhook, Webhook: &alerts.WebhookSpec{URL: "https://u:secret@hooks.example:8443/secret?secret"}},
		{Name: "chat", Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: "https://chat.example/services/secret"}},
		{Name: "mail", Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{Addr: "mail.example:587", Password: "secret"}},
	}}
	desk := &alerts.Admin{Store: store, Rules: func() *alerts.Rules { return rules }, Sender: sender,
		Target: func(c *alerts.ChannelSpec) string { return c.Name + "'s target" }}
	_, nc := serve(t, nil, append(change, func(c *ServiceConfig) { c.Alerts = desk })...)
	return store, nc, sender
}

func someAlert(n int) alerts.Alert {
	return alerts.Alert{ID: fmt.Sprintf("a%d", n), GroupID: alerts.GroupID{Rule: "denials", Key: "7"}, Severity: alerts.Warning,
		Type: limits.EventExceeded, Key: "api:user:7", Name: "1m", Window: "1m", User: "7", Limit: 100, Denied: 41, Events: 1,
		FirstAt: 1, LastAt: 2, RaisedAt: alertNow + int64(n/2), ResolveAt: alertNow + 9, Notice: alerts.Pending, Title: "t", Text: "long"}
}

// wantPrefixes sends requests and compares the beginnings of the answers.
func wantPrefixes(t *testing.T, nc *nats.Conn, asks []struct{ subject, body, want string }) {
	t.Helper()
	for _, c := range asks {
		if m := ask(t, nc, c.subject, c.body); !strings.HasPrefix(string(m.Data), c.want) {
			t.Errorf("%s %s\n got %s\nwant %s", c.subject, c.body, m.Data, c.want)
		}
	}
}

func badField(code, field string) string {
	return `{"error":{"code":"` + code + `","field":"` + field + `",`
}

func TestAlertsAreListedAndShown(t *testing.T) {
	t.Parallel()
	store, nc, _ := alertDesk(t)
	var all []alerts.Alert
	for n := range 5 {
		all = append(all, someAlert(n))
		all[n].GroupID.Key = all[n].ID
	}
	all[0].User, all[0].ResolveAt = "8", alertNow
	store.raise(all...)
	_, err := store.ResolveAlerts(t.Context(), 1, func(alerts.Alert) ([]alerts.Delivery, error) { return nil, nil })
	store.must(err)
	store.deliver("a1", "pager", alerts.DeliveryWaiting)
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsList, `{"max":2}`, `{"alerts":[{"id":"a4","rule":"denials","severity":"warning","event":"limits.exceeded","user":"7",` +
			`"name":"1m","key":"api:user:7","window":"1m","limit":100,"denied":41,"events":1,"firstAt":1,"lastAt":2,"raisedAt":1800000000002,` +
			`"resolveAt":1800000000009,"notice":"sent","noticeAt":1800000000000,"channels":[],"title":"t"},{"id":"a3",`},
		{limits.SubjectAlertsList, `{"user":"8"}`, `{"alerts":[{"id":"a0",`},
		{limits.SubjectAlertsList, `{"user":"8","open":true}`, `{"alerts":[]}`},
		{limits.SubjectAlertsList, `{"rule":"other"}`, `{"alerts":[]}`},
		{limits.SubjectAlertsList, `{"policy":"other"}`, `{"alerts":[]}`},
		{limits.SubjectAlertsList, `{"max":0}`, badField("invalid_max", "max")},
		{limits.SubjectAlertsList, `{"max":201}`, badField("invalid_max", "max")},
		{limits.SubjectAlertsList, `{"open":1}`, badField("invalid_open", "open")},
		{limits.SubjectAlertsList, `{"user":"a\u0000"}`, badField("invalid_user", "user")},
		{limits.SubjectAlertsList, `{"limit":1}`, badField("unknown_field", "limit")},
		{limits.SubjectAlertsList, `{"after":"x"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"1/"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"-1/a"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"0/a"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"253402300800000/a"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"1/a\u0000"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"1/` + strings.Repeat("x", 129) + `"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsList, `{"after":"1/` + strings.Repeat("x", 128) + `"}`, `{"alerts":[]}`},
		{limits.SubjectAlertsList, `[]`, `{"error":`},
		{limits.SubjectAlertsShow, `{"id":"a1"}`, `{"alert":{"id":"a1",`},
		{limits.SubjectAlertsShow, `{"id":"a9"}`, badField("unknown_alert", "id")},
		{limits.SubjectAlertsShow, `{}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsShow, `{"id":""}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsShow, `{"id":"` + strings.Repeat("x", 129) + `"}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsShow, `{"id":"a1","id":"a2"}`, `{"error":`},
	})
	if m := ask(t, nc, limits.SubjectAlertsShow, `{"id":"a1"}`); !strings.HasSuffix(string(m.Data), `"title":"t","text":"long"},`+
		`"deliveries":[{"id":"a1.raised/pager","channel":"pager","type":"alerts.raised","user":"7","title":"t","state":"waiting",`+
		`"attempts":1,"error":"500","createdAt":1800000000000,"dueAt":1800000000009}]}`) {
		t.Errorf("%s", m.Data)
	}
	if seen := strings.Join(alertPages(t, nc), " "); seen != "a4 a3 a2 a1 a0" {
		t.Errorf("pages gave %s", seen)
	}
}

// alertPages lists all alerts two at a time, and returns their ids.
func alertPages(t *testing.T, nc *nats.Conn) (seen []string) {
	t.Helper()
	client := limits.NewClient(nc, limits.Timeout(time.Minute))
	for r := (limits.ListAlertsRequest{Max: 2}); ; {
		page, err := client.ListAlerts(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page.Alerts {
			seen = append(seen, a.ID)
		}
		if r.After = page.Next; r.After == "" {
			return seen
		}
	}
}

// TestDefaultPageSizeIsFifty: a page has 50 alerts or dead letters by default.
func TestDefaultPageSizeIsFifty(t *testing.T) {
	t.Parallel()
	store, nc, _ := alertDesk(t)
	var all []alerts.Alert
	for n := range 51 {
		a := someAlert(n)
		a.GroupID.Key = a.ID
		all = append(all, a)
		store.deliver(a.ID, "pager", alerts.DeliveryDead)
	}
	store.raise(all...)
	client := limits.NewClient(nc, limits.Timeout(time.Minute))
	for most, want := range map[int]int{0: 50, 51: 51, 200: 51} {
		list, err := client.ListAlerts(t.Context(), limits.ListAlertsRequest{Max: most})
		if err != nil || len(list.Alerts) != want || (list.Next != "") != (want == 50) {
			t.Errorf("a page of %d has %d alerts, want %d: %v", most, len(list.Alerts), want, err)
		}
		dead, err := client.DeadLetters(t.Context(), limits.DeadRequest{Max: most})
		if err != nil || len(dead.Deliveries) != want || (dead.Next != "") != (want == 50) {
			t.Errorf("a page of %d has %d dead letters, want %d: %v", most, len(dead.Deliveries), want, err)
		}
	}
}

// TestWireAlertHasEveryField: each field is there, with the value of the field of the same name.
func TestWireAlertHasEveryField(t *testing.T) {
	t.Parallel()
	read := func(v any) (fields map[string]any) {
		data, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(data, &fields)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fields
	}
	a := alerts.Alert{ID: "id", GroupID: alerts.GroupID{Rule: "rule"}, Severity: alerts.Warning, Type: limits.EventExceeded, Key: "key", Name: "name",
		Policy: "policy", Window: "1m", User: "user", Limit: 1, Denied: 2, Events: 3, FirstAt: 4, LastAt: 5, Channels: []string{"log"},
		Title: "title", Text: "text", RaisedAt: 6, ResolvedAt: 7, ResolveAt: 8, Notice: alerts.Held, Reason: "reason", NoticeAt: 9, HeldUntil: 10,
		Digest: "digest"}
	want, got := read(&a), read(WireAlert(&a))
	want["rule"], want["event"] = want["Rule"], want["type"]
	for name, value := range got {
		if !reflect.DeepEqual(value, want[name]) {
			t.Errorf("%s is %v, want %v", name, value, want[name])
		}
	}
	if n := reflect.TypeFor[limits.Alert]().NumField(); len(got) != n {
		t.Errorf("%d of %d fields are told: %v", len(got), n, slices.Sorted(maps.Keys(got)))
	}
	if warned := WireAlert(&alerts.Alert{Type: limits.EventWarning, Denied: 3}); warned.Denied != 0 {
		t.Errorf("%d denials of a warning", warned.Denied)
	}
	if none := read(WireAlert(&alerts.Alert{})); none["channels"] == nil {
		t.Error("an alert for nobody has no array of channels")
	}
}

// TestSilenceOfNoRuleIsRefused: it would silence nothing, and nobody would know until the next alert.
func TestSilenceOfNoRuleIsRefused(t *testing.T) {
	t.Parallel()
	_, nc, _ := alertDesk(t)
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsSilence, `{"rule":"denails","reason":"r","for":1}`,
			badField("unknown_rule", "rule") + `"message":"unknown rule \"denails\"; the rules are denials, logins"`},
		{limits.SubjectAlertsSilence, `{"rule":"denail*","user":"7","reason":"r","for":1}`, badField("unknown_rule", "rule")},
		{limits.SubjectAlertsSilences, `{}`, `{"silences":[]}`},
		{limits.SubjectAlertsSilence, `{"rule":"logins","reason":"r","for":1}`, `{"silence":{"id":"`},
		{limits.SubjectAlertsSilence, `{"rule":"*in*","reason":"r","for":1}`, `{"silence":{"id":"`},
	})
}

func TestSilences(t *testing.T) {
	t.Parallel()
	store, nc, _ := alertDesk(t)
	later := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	// As many nanoseconds from now as begin anew in 64 bits, and a minute.
	around := fmt.Sprint(time.Now().Add(time.Minute).UnixMilli() + math.MaxUint64/1_000_000)
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsSilence, `{"for":1000,"reason":"r"}`, badField("invalid_rule", "rule")},
		{limits.SubjectAlertsSilence, `{"user":"7","for":1000}`, badField("invalid_reason", "reason")},
		{limits.SubjectAlertsSilence, `{"user":"7","for":1000,"reason":" "}`, badField("invalid_reason", "reason")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r"}`, badField("invalid_expiresAt", "expiresAt")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","expiresAt":1}`, badField("invalid_expiresAt", "expiresAt")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","expiresAt":253402300799999}`, badField("invalid_expiresAt", "expiresAt")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","expiresAt":` + around + `}`, badField("invalid_expiresAt", "expiresAt")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","for":31622400001}`, badField("invalid_for", "for")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","for":1,"expiresAt":` + later + `}`, badField("mixed_forms", "for")},
		{limits.SubjectAlertsSilence, `{"user":"","reason":"r","for":1}`, badField("invalid_user", "user")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"r","for":1,"id":"x"}`, badField("unknown_field", "id")},
		{limits.SubjectAlertsSilence, `{"user":"7","reason":"` + strings.Repeat("r", 257) + `","for":1}`, badField("invalid_reason", "reason")},
		{limits.SubjectAlertsSilences, `{}`, `{"silences":[]}`},
		{limits.SubjectAlertsSilences, `{"max":1001}`, badField("invalid_max", "max")},
		{limits.SubjectAlertsSilences, `{"max":0}`, badField("invalid_max", "max")},
		{limits.SubjectAlertsSilences, `{"after":"x"}`, badField("invalid_after", "after")},
		{limits.SubjectAlertsSilences, `{"ended":true}`, badField("unknown_field", "ended")},
		{limits.SubjectAlertsUnsilence, `{"id":"x"}`, badField("unknown_silence", "id")},
		{limits.SubjectAlertsUnsilence, `{}`, badField("invalid_id", "id")},
		{limits.SubjectAlertsSilence, `{"user":"acme-*","reason":"r","expiresAt":` + later + `}`, `{"silence":{"id":"`},
	})
	client := limits.NewClient(nc, limits.Timeout(time.Minute))
	made, err := client.SilenceAlerts(t.Context(), limits.SilenceRequest{Rule: "*", For: 5000, Reason: "load test", By: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	want := limits.Silence{ID: made.Silence.ID, Rule: "*", Reason: "load test", By: "ann", CreatedAt: alertNow, ExpiresAt: alertNow + 5000}
	if made.Silence != want || len(want.ID) != 26 {
		t.Errorf("%+v", made.Silence)
	}
	if ended, err := client.UnsilenceAlerts(t.Context(), want.ID); err != nil || ended.Silence.ExpiresAt != alertNow {
		t.Errorf("%+v %v", ended, err)
	}
	for all, n := range map[bool]int{false: 1, true: 2} {
		if list, err := client.ListSilences(t.Context(), limits.ListSilencesRequest{All: all}); err != nil || len(list.Silences) != n {
			t.Errorf("all %v: %+v %v", all, list, err)
		}
	}
	for range limits.MaxSilences {
		_, err := store.AddSilence(t.Context(), alerts.Silence{ID: rand.Text()}, time.Hour)
		store.must(err)
	}
	for request, n := range map[limits.ListSilencesRequest]int{{}: limits.MaxSilences, {Max: 300}: 300, {All: true}: 50,
		{All: true, Max: limits.MaxSilences}: limits.MaxSilences} {
		if list, err := client.ListSilences(t.Context(), request); err != nil {
			t.Errorf("%+v: %v", request, err)
		} else if len(list.Silences) != n {
			t.Errorf("%+v gives %d silences, want %d", request, len(list.Silences), n)
		}
	}
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsSilence, `{"user":"7","for":1000,"reason":"r"}`, `{"error":{"code":"too_many_silences","message":"1000 silences are already active;`},
	})
}

// TestAllSilencesCanBeListed, even if all of them are more than NATS takes in one message: a
// silence that is not listed could not be ended.
func TestAllSilencesCanBeListed(t *testing.T) {
	t.Parallel()
	store, nc, _ := alertDesk(t)
	long := strings.Repeat("r", limits.MaxKeyBytes)
	for n := range limits.MaxSilences {
		silence := alerts.Silence{ID: rand.Text(), Rule: long, Policy: long, Key: long, User: long, Reason: long}
		_, err := store.AddSilence(t.Context(), silence, time.Duration(1-n%2)*time.Hour) // every other one has ended
		store.must(err)
	}
	client := limits.NewClient(nc, limits.Timeout(time.Minute))
	request := limits.ListSilencesRequest{All: true, Max: limits.MaxSilences}
	if _, err := client.ListSilences(t.Context(), request); err == nil || !strings.Contains(err.Error(), limits.CodeTooLarge) {
		t.Errorf("all at a time: %v", err)
	}
	for all, want := range map[bool]int{false: limits.MaxSilences / 2, true: limits.MaxSilences} {
		ids, last := map[string]bool{}, false
		for request = (limits.ListSilencesRequest{All: all, Max: 100}); !last; last = request.After == "" {
			page, err := client.ListSilences(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			for _, silence := range page.Silences {
				if ids[silence.ID] {
					t.Errorf("silence %s is on two pages", silence.ID)
				}
				ids[silence.ID] = true
			}
			request.After = page.Next
		}
		if len(ids) != want {
			t.Errorf("the pages have %d silences, want %d", len(ids), want)
		}
	}
	request.After = alertCursor(1, "a") // of a silence that is gone, as are all that were made before it
	if page, err := client.ListSilences(t.Context(), request); err != nil || len(page.Silences) != 0 || page.Next != "" {
		t.Errorf("behind the last: %+v, %v", page, err)
	}
}

func TestChannelTest(t *testing.T) {
	t.Parallel()
	store, nc, sender := alertDesk(t)
	store.disable("chat")
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsTest, `{"channel":"none"}`, badField("unknown_channel", "channel")},
		{limits.SubjectAlertsTest, `{"channel":""}`, badField("invalid_channel", "channel")},
		{limits.SubjectAlertsTest, `{"note":"` + strings.Repeat("n", 257) + `"}`, badField("invalid_note", "note")},
		{limits.SubjectAlertsTest, `{"all":true}`, badField("unknown_field", "all")},
	})
	client := limits.NewClient(nc, limits.Timeout(time.Minute))
	before := time.Now().UnixMilli()
	one, err := client.TestAlert(t.Context(), limits.TestAlertRequest{Channel: "pager", Note: "hello"})
	if err != nil || strings.Join(one.Channels, " ") != "pager" || sender.woken != 1 {
		t.Fatal(one, err)
	}
	shown, err := client.ShowAlert(t.Context(), one.ID)
	if err != nil || shown.Alert != nil || len(shown.Deliveries) != 1 || shown.Deliveries[0].ID != one.ID+".pager/pager" {
		t.Errorf("%+v %v", shown, err)
	}
	kept, err := store.DeliveriesOf(t.Context(), one.ID, 9)
	store.must(err)
	m := kept[0].Message
	var data limits.AlertTest
	if err := json.Unmarshal(m.Data, &data); err != nil || m.Kind != alerts.KindTest || m.Severity != alerts.Info ||
		data.SentAt < before || data.SentAt > time.Now().UnixMilli() ||
		data != (limits.AlertTest{Channel: "pager", Note: "hello", SentAt: data.SentAt}) || !strings.Contains(m.Text, "hello") {
		t.Errorf("%+v %+v %v", m, data, err)
	}
	if all, err := client.TestAlert(t.Context(), limits.TestAlertRequest{}); err != nil || len(all.Channels) != 4 {
		t.Error(all, err)
	}
	wantPrefixes(t, nc, []struct{ subject, body, want string }{
		{limits.SubjectAlertsChannels, `{"max":1}`, badField("unknown_field", "max")},
		{limits.SubjectAlertsChannels, `{}`, `{"channels":[{"name":"nats","kind":"nats","waiting":1},` +
			`{"name":"pager","kind":"webhook","host":"hooks.example","waiting":2,"breaker":"open","lastError":"it answered 500"},` +
			`{"name":"chat","kind":"slack","host":"chat.example","waiting":1,"disabledAt":1800000000000,"disabledReason":"410 Gone"},` +
			`{"name":"mail","kind":"smtp","host":"mail.example","waiting":1,"pausedUntil":1800000600000}]}`},
	})
}

// TestServiceWithoutAnEngine serves alerts next to a limiter: each answers its endpoints, under one
// name.
func TestServiceWithoutAnEngine(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	desk := &alerts.Admin{Store: openAlertStore(t), Rules: func() *alerts.Rules { return &alerts.Rules{} }}
	cfg := ServiceConfig{Conn: dial(t, url), Alerts: desk, Logger: slog.New(slog.DiscardHandler)}
	alerter, err := NewService(cfg)
	if err != nil {
		t.Fatal(err)
	}
	nc := dial(t, url)
	if _, err := nc.Request(limits.SubjectConsume, []byte(hot), time.Minute); err != nats.ErrNoResponders {
		t.Errorf("an alerter decides: %v", err)
	}
	if n := len(alerter.current.Info().Endpoints); n != 9 {
		t.Errorf("%d endpoints", n)
	}
	worker, err := NewService(ServiceConfig{Conn: dial(t, url), Engine: &fakeEngine{submit: allowing}, Logger: cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	if m := ask(t, nc, limits.SubjectConsume, hot); m.Header.Get(micro.ErrorCodeHeader) != "" {
		t.Errorf("%s", m.Data)
	}
	for range 20 { // the queue group has one member here
		if m := ask(t, nc, limits.SubjectAlertsList, `{}`); string(m.Data) != `{"alerts":[]}` {
			t.Errorf("%s", m.Data)
		}
	}
	for _, s := range []*Service{worker, alerter} {
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
