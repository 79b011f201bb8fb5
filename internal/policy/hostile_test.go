package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// TestLargeFilesAreRead: whatever a file of the largest size contains, reading it ends, and its errors are short enough to read.
// The log shows how long each takes.
func TestLargeFilesAreRead(t *testing.T) {
	t.Parallel()
	fill := func(part string) string { return strings.Repeat(part, (yamlfile.MaxFileBytes-1000)/len(part)) }
	nested := &strings.Builder{}
	for i := 0; nested.Len() < yamlfile.MaxFileBytes-3000; i++ {
		nested.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	many := &strings.Builder{}
	many.WriteString("policies:\n")
	for i := range 1000 {
		fmt.Fprintf(many, "  - {name: p%d, group: g, match: {user: [%s]}, limits: [{key: k, limit: 1, window: 1m}]}\n", i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("u%d*,", i), 100), ","))
	}
	undeclared := &strings.Builder{}
	undeclared.WriteString("attributes:\n")
	for i := range 20_000 {
		fmt.Fprintf(undeclared, "- a%d\n", i)
	}
	undeclared.WriteString("policies:\n")
	for i := range 700 {
		fmt.Fprintf(undeclared, "- name: p%d\n  limits:\n", i)
		for j := range maxLimits {
			fmt.Fprintf(undeclared, "  - {name: l%d, key: '{u%d}', limit: 1, window: 1m}\n", j, i*maxLimits+j)
		}
	}
	for name, text := range map[string]string{
		"undeclared":    undeclared.String(),
		"a list":        "policies:\n" + fill("  - a\n"),
		"fields":        fill("a: 1\n"),
		"policies":      many.String(),
		"nested":        nested.String(),
		"sequences":     strings.Repeat("- ", 2000) + "\n",
		"a long scalar": "policies: |\n" + fill("  "+strings.Repeat("x", 4000)+"\n"),
		"brackets":      "policies: [" + fill("{},") + "]",
		"lines":         fill("\n"),
		"comments":      fill("# x\n"),
		"quotes":        "policies: '" + fill("''"),
		"documents":     fill("---\n"),
		"bracketed":     "policies: {" + fill("a: 1,\n") + "}",
		"closing":       fill("}\n"),
		"bracket names": fill("}: 1\n"),
		"members":       strings.Repeat("a: 1\n", yamlfile.MaxMembers),
		"glob":          "policies: [{name: p, match: {a: '" + strings.Repeat("*a", 1000) + "'}, limits: [{key: k, limit: 1, window: 1m}]}]",
	} {
		begin := time.Now()
		_, err := Parse("f", []byte(text), options)
		t.Logf("%s: %d bytes in %s: %.200v", name, len(text), time.Since(begin).Round(time.Millisecond), err)
		if err != nil && len(err.Error()) > yamlfile.MaxFileBytes {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

// TestPolicyBoundIsTheSameInJSON: the bound of lines does not count a policy twice if its first
// line is only a bracket.
func TestPolicyBoundIsTheSameInJSON(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{
		1000: "",
		1001: "f:6003: policies[1000]: more than 1000 policies; combine similar ones into one with an attribute in its key",
	} {
		text := &strings.Builder{}
		text.WriteString("{\n  \"policies\": [\n")
		for i := range n {
			fmt.Fprintf(text, "    {\n      \"name\": \"p%d\",\n      \"limits\": [\n        {\"key\": \"k\", \"limit\": 1, \"window\": \"1m\"}\n"+
				"      ]\n    }%s\n", i, strings.Repeat(",", min(1, n-1-i)))
		}
		text.WriteString("  ]\n}\n")
		_, err := Parse("f", []byte(text.String()), options)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%d policies: %.300s; want %q", n, got, want)
		}
	}
}
