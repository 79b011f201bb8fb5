package limits_test

import (
	"runtime"
	"slices"
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

// readsAlike reports whether read can read an answer. It fails the test if decode, which uses encoding/json, reads it differently.
func readsAlike[T any](t *testing.T, answer []byte, read func([]byte) (*T, bool), decode func([]byte) (*T, error)) bool {
	t.Helper()
	got, ok := read(answer)
	if !ok {
		return false
	}
	want, err := decode(answer)
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%s: %v %s", answer, err, d)
	}
	return true
}

func testReader[T any](t *testing.T, own, other []string, read func([]byte) (*T, bool), decode func([]byte) (*T, error)) {
	t.Helper()
	for i, answer := range slices.Concat(own, other) {
		if ok := readsAlike(t, []byte(answer), read, decode); ok != (i < len(own)) {
			t.Errorf("%s: read without encoding/json: %t", answer, ok)
		}
	}
}

func TestRepliesAreReadLikeJSON(t *testing.T) {
	t.Parallel()
	testReader(t, replies, otherReplies, limits.ReadReply, limits.DecodeReply)
	testReader(t, verifyReplies, otherVerifyReplies, limits.ReadVerifyReply, limits.DecodeVerifyReply)
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

func fuzzReader[T any](f *testing.F, seeds []string, read func([]byte) (*T, bool), decode func([]byte) (*T, error)) {
	for _, answer := range seeds {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) { readsAlike(t, answer, read, decode) })
}

func FuzzReadReply(f *testing.F) {
	fuzzReader(f, slices.Concat(replies, otherReplies), limits.ReadReply, limits.DecodeReply)
}

func FuzzReadVerifyReply(f *testing.F) {
	fuzzReader(f, slices.Concat(verifyReplies, otherVerifyReplies), limits.ReadVerifyReply, limits.DecodeVerifyReply)
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
