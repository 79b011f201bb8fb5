package limits_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// replies are decisions as limiters write them.
var replies = []string{
	`{"allowed":true,"key":"api:user:123","name":"1m","limit":100,"remaining":42,"reset":1790000000000}`,
	`{"allowed":false,"key":"api:user:123","name":"1m","limit":100,"remaining":0,"reset":1790000000000,"retryAfter":23000,` +
		`"blockedBy":"1m","message":"100 of 100 used in 1m; try again in 23s"}`,
	`{"allowed":true,"limit":0,"remaining":0,"reset":0,"limits":[]}`,
	`{"allowed":true,"key":"k","name":"n","limit":5,"remaining":-1,"reset":3,"limits":[{"policy":"p","name":"n","key":"k","algorithm":` +
		`"fixed_window","limit":5,"window":"day","remaining":4,"reset":3,"allowed":true},{"name":"é","key":"k","algorithm":"token_bucket",` +
		`"limit":9223372036854775807,"window":"1s","remaining":0,"reset":3,"allowed":false,"retryAfter":7,"shadow":true}],"degraded":true,"shadow":true}`,
}

// otherReplies are decisions in other forms, and answers that are none.
var otherReplies = []string{
	`{"allowed": true}`, `{"allowed":true,"new":1}`, `{"Allowed":true}`, `{"allowed":true,"key":"\u0061"}`, "{\"allowed\":true,\"key\":\"\xff\"}",
	"{\"allowed\":true,\"key\":\"\n\"}", `{"allowed":true,"limit":01}`, `{"allowed":true,"limit":-01}`, `{"allowed":true,"limit":1.0}`, `{"allowed":true,"limit":-}`,
	`{"allowed":true,"limit":9223372036854775808}`, `{"allowed":true,"limit":}`, `{"allowed":true,"limit":null}`, `{"allowed":null}`, `{"allowed":tru}`,
	`{"allowed":true,"limits":null}`, `{"allowed":true,"limits":[],"limits":[]}`, `{"allowed":true,limits"[]}`, `{"allowed":true,"limits":[{}]}`, `{"allowed":true,"limits":[,]}`,
	`{"allowed":true,"limits":[{"new":1}]}`, `{"allowed":true,"limits":[{"name":"a"}{"name":"b"}]}`, `{"allowed":true,"limits":[{"name":"a"},]}`,
	`{"allowed":true}}`, `{"allowed":true,}`, `{"allowed":true`, `{"allowed":true,"key":"`, `{"key":"k"}`, `{}`, `{`, `null`, `[]`, ``,
}

// verifyReplies are answers about API keys as limiters write them.
var verifyReplies = []string{
	`{"valid":false,"code":"unknown"}`,
	`{"valid":false,"code":"expired","key":{"id":"AbCdEf12"},"user":"7","tier":"PRO","attributes":{"plan":"free","é":""}}`,
	`{"valid":true,"key":{"id":"AbCdEf12","name":"web shop"},"user":"7","decision":` + replies[1] + `}`,
}

var otherVerifyReplies = []string{
	`{"code":"unknown"}`, `{"valid":true,"new":1}`, `{"valid":true,"key":{"new":1}}`, `{"valid":true,"key":{}}`, `{"valid":true,"key":null}`,
	`{"valid":true,"key":{"id":"a"},"key":{"name":"b"}}`, `{"valid":true,"attributes":{}}`, `{"valid":true,"attributes":{"a":1}}`,
	`{"valid":true,"attributes":{"a":"1"},"attributes":{"b":"2"}}`, `{"valid":true,"decision":{"limit":1}}`, `{"valid":true,"decision":null}`,
	`{"valid":true,"decision":{"allowed":true},"decision":{"allowed":false}}`, `{"valid":true} `, ``,
}

// decodeReply is what readReply has to agree with.
func decodeReply(answer []byte) (*limits.Reply, bool) {
	var r struct {
		limits.Reply
		Allowed *bool `json:"allowed"`
	}
	if json.Unmarshal(answer, &r) != nil || r.Allowed == nil {
		return nil, false
	}
	r.Reply.Allowed = *r.Allowed
	return &r.Reply, true
}

// decodeVerifyReply is what readVerifyReply has to agree with.
func decodeVerifyReply(answer []byte) (*limits.VerifyReply, bool) {
	var r struct {
		limits.VerifyReply
		Valid    *bool           `json:"valid"`
		Decision json.RawMessage `json:"decision"`
	}
	if json.Unmarshal(answer, &r) != nil || r.Valid == nil {
		return nil, false
	}
	r.VerifyReply.Valid = *r.Valid
	ok := true
	if r.Decision != nil {
		r.VerifyReply.Decision, ok = decodeReply(r.Decision)
	}
	return &r.VerifyReply, ok
}

func TestRepliesAreReadLikeJSON(t *testing.T) {
	t.Parallel()
	for _, answer := range replies {
		got, ok := limits.ReadReply([]byte(answer))
		want, _ := decodeReply([]byte(answer))
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Errorf("%s: read %v %s", answer, ok, d)
		}
	}
	for _, answer := range verifyReplies {
		got, ok := limits.ReadVerifyReply([]byte(answer))
		want, _ := decodeVerifyReply([]byte(answer))
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Errorf("%s: read %v %s", answer, ok, d)
		}
	}
	for _, answer := range otherVerifyReplies {
		if got, ok := limits.ReadVerifyReply([]byte(answer)); ok {
			t.Errorf("%s: read as %+v, left to encoding/json it would be right", answer, got)
		}
	}
	for _, answer := range otherReplies {
		if got, ok := limits.ReadReply([]byte(answer)); ok {
			t.Errorf("%s: read as %+v, left to encoding/json it would be right", answer, got)
		}
	}
}

// TestKeyDoesNotKeepItsAnswerInMemory: the middleware keeps thousands of keys, and a decision may be much larger than a key.
func TestKeyDoesNotKeepItsAnswerInMemory(t *testing.T) {
	answer := []byte(`{"valid":true,"key":{"id":"AbCdEf12","name":"web"},"user":"7","tier":"PRO","attributes":{"plan":"free"},` +
		`"decision":{"allowed":true,"message":"` + strings.Repeat("-", 1<<20) + `"}}`)
	var kept [64]*limits.VerifyReply
	before := heap()
	for i := range kept {
		reply, ok := limits.ReadVerifyReply(answer)
		if !ok {
			t.Fatal("not read")
		}
		reply.Decision = nil
		kept[i] = reply
	}
	if after := heap(); after > before+uint64(len(kept)*len(answer)/2) {
		t.Errorf("%d MB more for %d keys", (after-before)>>20, len(kept))
	}
	runtime.KeepAlive(&kept)
}

// TestLimitersWriteRepliesThatAreReadFast: otherwise each would be read by encoding/json, which is right, but slow.
func TestLimitersWriteRepliesThatAreReadFast(t *testing.T) {
	t.Parallel()
	c := patient(testenv.Connect(t, natsURL))
	for _, request := range []string{
		`{"key":"fast:é","limit":1,"window":"1h"}`,
		`{"key":"fast:é","limit":1,"window":"1h"}`,
		`{"key":"fast:é","limit":1,"window":"1h","cost":2}`,
		`{"limits":[{"key":"fast","limit":1,"window":"1h"},{"key":"fast","limit":1,"window":"day"}]}`,
		`{"limits":[{"key":"fast","limit":1,"window":"1h"},{"key":"fast","limit":1,"window":"day"}]}`,
	} {
		answer, err := c.Do(t.Context(), limits.SubjectConsume, []byte(request))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := limits.ReadReply(answer); !ok {
			t.Errorf("%s is answered by %s", request, answer)
		}
	}
	created, err := c.CreateKey(t.Context(), limits.CreateKeyRequest{User: "é", Name: "web", Tier: "PRO", Attributes: map[string]string{"a": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{created.APIKey, "unknown"} {
		answer, err := c.Do(t.Context(), limits.SubjectVerify, []byte(`{"apiKey":"`+key+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := limits.ReadVerifyReply(answer); !ok {
			t.Errorf("a verify is answered by %s", answer)
		}
	}
}

func FuzzReadReply(f *testing.F) {
	for _, answer := range append(replies, otherReplies...) {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		got, ok := limits.ReadReply(answer)
		if !ok {
			return
		}
		want, _ := decodeReply(answer)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", answer, d)
		}
	})
}

func FuzzReadVerifyReply(f *testing.F) {
	for _, answer := range append(verifyReplies, otherVerifyReplies...) {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		got, ok := limits.ReadVerifyReply(answer)
		if !ok {
			return
		}
		want, _ := decodeVerifyReply(answer)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", answer, d)
		}
	})
}

func BenchmarkReadReply(b *testing.B) {
	for name, answer := range map[string]string{"allowed": replies[0], "denied": replies[1]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := limits.ReadReply([]byte(answer)); !ok {
					b.Fatal("not read")
				}
			}
		})
	}
}
