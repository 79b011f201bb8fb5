package bus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
)

// TestErrorsShowNoAPIKey: a key that a client puts in a wrong place is quoted without its secret, in answers and statistics.
func TestErrorsShowNoAPIKey(t *testing.T) {
	t.Parallel()
	_, nc := oneWorker(t, &fakeEngine{})
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	secret := strings.Split(key, "_")[2]
	for _, c := range []struct{ subject, body string }{
		{limits.SubjectVerify, `{"%s":1}`}, {limits.SubjectVerify, `{"apiKey":"x","cost":"%s"}`},
		{limits.SubjectVerify, `{"apiKey":"x","tier":"\u0000%s"}`}, {limits.SubjectVerify, `{"apiKey":"x","attributes":{"%s":1}}`},
		{limits.SubjectConsume, `{"key":"a","limit":1,"window":"%s"}`}, {limits.SubjectConsume, `{"policy":"%s"}`},
		{limits.SubjectConsume, `{"attributes":{"%s":"\u0000"}}`}, {limits.SubjectConsume, `{"key":"a","limit":1,"window":"month","timezone":"%s"}`},
	} {
		m := ask(t, nc, c.subject, fmt.Sprintf(c.body, key))
		if text := fmt.Sprint(m.Header) + string(m.Data); strings.Contains(text, secret) || m.Header.Get(micro.ErrorCodeHeader) == "" {
			t.Errorf("%s %s: %s", c.subject, c.body, text)
		}
	}
	if stats := ask(t, nc, "$SRV.STATS.limits", ""); strings.Contains(string(stats.Data), secret) || !strings.Contains(string(stats.Data), "last_error") {
		t.Errorf("%s", stats.Data)
	}
}

// TestErrorsShowNoAttribute: a value of which a policy keeps a hash must not be in errors, statistics and the log in clear. They
// name what is wrong with it.
func TestErrorsShowNoAttribute(t *testing.T) {
	t.Parallel()
	policies := keeperOf(t, `policies: [{name: p, limits: [{name: mail, key: "mail:{email|lower|hash}", limit: 1, window: 1m},
		{name: ip, key: "ip:{ip|hash}", limit: 1, window: 1m}]}]`)
	w, nc := oneWorker(t, &fakeEngine{}, func(c *ServiceConfig) { c.Policies = policies })
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	const mail = "alice.secret@example.com"
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectConsume, `{"policy":"p","attributes":{"email":"%s\u00a0"}}`, "unprintable character U+00A0 at byte 24"},
		{limits.SubjectCheck, `{"policy":"p","attributes":{"email":"%s` + strings.Repeat("m", 256) + `"}}`, "has 280 bytes"},
		{limits.SubjectRecord, `{"policy":"p","attributes":{"email":["%s"]}}`, "got an array"},
		{limits.SubjectRefund, `{"policy":"p","attributes":["%s"]}`, "got an array"},
		{limits.SubjectConsume, `{"policy":"p","attributes":"%s"}`, "got a string"},
		{limits.SubjectConsume, `{"policy":"p","attributes":{"email":"%s\q"}}`, "not valid JSON"},
		{limits.SubjectConsume, `{"policy":"p","attributes":{"email":"%s`, "ends too early"},
		{limits.SubjectConsume, `{"policy":"p","attributes":{"ip":"%[1]s","email":"%[1]s"}}`, "is not an IP address"},
		{limits.SubjectVerify, `{"apiKey":"` + key + `","policy":"p","attributes":{"email":"%s\u0000"}}`, "U+0000 at byte 24"},
		{limits.SubjectVerify, `{"apiKey":"` + key + `","policy":"p","attributes":{"email":"a","ip":"%s"}}`, "is not an IP address"},
		{limits.SubjectKeysCreate, `{"user":"7","attributes":{"email":"%s\u200b"}}`, "U+200B at byte 24"},
		{limits.SubjectOverridesSet, `{"policy":"p","name":"mail","subject":"mail:%s","limit":2,"reason":"r"}`, "32 hex digits"},
		{limits.SubjectOverridesSet, `{"policy":"p","name":"mail","subject":"mail:%s*","limit":2,"reason":"r"}`, "32 hex digits"},
	} {
		m := ask(t, nc, c.subject, fmt.Sprintf(c.body, mail))
		text := string(m.Data) + fmt.Sprint(m.Header) + string(ask(t, nc, "$SRV.STATS.limits", "").Data)
		if strings.Contains(text, "secret") || m.Header.Get(micro.ErrorCodeHeader) != "400" || !strings.Contains(string(m.Data), c.want) {
			t.Errorf("%s %s: %s", c.subject, c.body, text)
		}
	}
	if strings.Contains(w.log.String(), "secret") {
		t.Error(w.log)
	}
}
