package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestReceiverAcceptsOnlySignedMessages(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of the examples of Standard Webhooks
	key, err := readSecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	sign := func(key []byte, id string, at time.Time, body string) string {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
		return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	const body = `{"type":"alerts.raised","data":{"user":"7","title":"denied"}}`
	for name, c := range map[string]struct {
		at        time.Time
		signature string
		status    int
	}{
		"signed":                     {now, sign(key, "m", now, body), 204},
		"signed by one of two":       {now, "v1,bm8= " + sign(key, "m", now, body), 204},
		"signed by another":          {now, sign([]byte("other"), "m", now, body), 401},
		"another body":               {now, sign(key, "m", now, body+" "), 401},
		"another id":                 {now, sign(key, "n", now, body), 401},
		"old":                        {now.Add(-time.Hour), sign(key, "m", now.Add(-time.Hour), body), 401},
		"of the future":              {now.Add(time.Hour), sign(key, "m", now.Add(time.Hour), body), 401},
		"not signed":                 {now, "", 401},
		"signed for another version": {now, strings.Replace(sign(key, "m", now, body), "v1", "v2", 1), 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			h := &hook{secret: key, now: func() time.Time { return now }, out: &out, seen: map[string]bool{}}
			for range 2 { // the second is a repeat
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
				r.Header.Set("webhook-id", "m")
				r.Header.Set("webhook-timestamp", fmt.Sprint(c.at.Unix()))
				r.Header.Set("webhook-signature", c.signature)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != c.status {
					t.Errorf("status %d, want %d", w.Code, c.status)
				}
			}
			want := map[int]string{204: "alerts.raised 7: denied\n"}[c.status]
			if out.String() != want {
				t.Errorf("printed %q, want %q", out.String(), want)
			}
		})
	}
}

// TestInvalidSecretIsRefused: with an empty one, whoever knows this program could sign.
func TestInvalidSecretIsRefused(t *testing.T) {
	t.Parallel()
	ofBytes := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, bad := range []string{"", "secret", "whsec_", "whsec_%", "whsec_" + ofBytes(23), "whsec_" + ofBytes(65), ofBytes(32)} {
		if _, err := readSecret(bad); err == nil || !strings.Contains(err.Error(), "openssl rand -base64 32") {
			t.Errorf("secret %q: %v; want an error that says how to make one", bad, err)
		}
	}
	for _, n := range []int{24, 64} {
		if key, err := readSecret("whsec_" + ofBytes(n)); err != nil || len(key) != n {
			t.Errorf("a secret of %d bytes: %d bytes, %v", n, len(key), err)
		}
	}
}
