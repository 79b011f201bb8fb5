package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestTheIndexChangesNoAnswer: a request gets what it would get if it were compared with every policy in turn.
func TestTheIndexChangesNoAnswer(t *testing.T) {
	t.Parallel()
	values := map[string][]string{
		"user":  {"a", "b", "c", `""`, `"a*"`, `"*"`},
		"route": {"a", "b", `"*b"`},
		"ip":    {"10.0.0.1", `"::ffff:10.0.0.1"`, "10.0.0.0/8", `"2001:db8::*"`},
	}
	rapid.Check(t, func(t *rapid.T) {
		var file strings.Builder
		file.WriteString("policies:\n")
		for n := range rapid.IntRange(1, 12).Draw(t, "policies") {
			fmt.Fprintf(&file, "  - {name: p%d, ", n)
			if rapid.IntRange(0, 3).Draw(t, "group") == 0 {
				file.WriteString("group: g, ")
			}
			var match []string
			for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"user", "route", "ip"}), 0, 3, rapid.ID).Draw(t, "match") {
				match = append(match, a+": ["+strings.Join(rapid.SliceOfN(rapid.SampledFrom(values[a]), 1, 3).Draw(t, a), ", ")+"]")
			}
			if len(match) > 0 {
				fmt.Fprintf(&file, "match: {%s}, ", strings.Join(match, ", "))
			}
			fmt.Fprintf(&file, "%s, on_error: %s}\n", keyed(rapid.SampledFrom([]string{"k", "{user}", "{route}"}).Draw(t, "key")),
				rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, "on_error"))
		}
		set, err := Parse("f", []byte(file.String()), options)
		if err != nil {
			t.Skip(err) // such as a policy that never applies
		}
		q := Question{Now: noon, Attributes: map[string]string{}}
		for name, some := range map[string][]string{"user": {"a", "b", "c", "ab", ""}, "route": {"a", "b", "c"}, "ip": {"10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1"}} {
			if v := rapid.SampledFrom(append(some, "-")).Draw(t, name); v != "-" {
				q.Attributes[name] = v
			}
		}
		got, gotErr := set.Resolve(q)
		want, wantErr := set.resolveInTurn(q)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Resolved{}, engine.Window{})); diff != "" || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			t.Errorf("%v in\n%s%v instead of %v: %s", q.Attributes, file.String(), gotErr, wantErr, diff)
		}
	})
}

// resolveInTurn is Resolve without an index.
func (s *Set) resolveInTurn(q Question) (Resolved, error) {
	r := s.resolver(&q)
	out := Resolved{OnError: s.options.OnError}
	for _, p := range s.policies {
		if err := r.addPolicy(&out, p); err != nil {
			return Resolved{}, err
		}
	}
	out.Until = r.until
	return out, nil
}

// TestAPolicyOfManyIsFoundByItsValue: a request is compared with those policies that name one of its values, by the
// attribute that tells them apart best.
func TestAPolicyOfManyIsFoundByItsValue(t *testing.T) {
	t.Parallel()
	set := manyPolicies(t)
	q := map[string]string{"app": "web", "user": "u7"}
	if got := set.index.candidates(q, nil); !cmp.Equal(got, []int{7}) {
		t.Errorf("compared with %v", got)
	}
	if r, err := set.Resolve(Question{Attributes: q}); err != nil || len(r.Limits) != 1 || r.Limits[0].Policy != "p7" {
		t.Errorf("%+v, %v", r, err)
	}
}

// manyPolicies has as many policies as a file may have, each for one user.
func manyPolicies(tb testing.TB) *Set {
	var file strings.Builder
	file.WriteString("policies:\n")
	for i := range maxPolicies {
		fmt.Fprintf(&file, "  - {name: p%d, match: {app: web, user: u%d}, limits: [{name: m, key: \"p%d:{user}\", limit: 10, window: 1h}]}\n", i, i, i)
	}
	return parse(tb, file.String())
}

func BenchmarkResolveOneOfManyPolicies(b *testing.B) {
	set := manyPolicies(b)
	q := Question{Attributes: map[string]string{"app": "web", "user": "u500"}}
	for b.Loop() {
		if _, err := set.Resolve(q); err != nil {
			b.Fatal(err)
		}
	}
}
