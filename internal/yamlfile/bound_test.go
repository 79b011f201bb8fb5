package yamlfile

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"pgregory.net/rapid"
)

// tree returns the tree of a file, nil for none, and its mistakes.
func tree(text string) (ast.Node, string) {
	p := New(Format{Name: "list", Want: "list"})
	root := p.parseYAML([]byte(text))
	if err := p.Err("f"); err != nil {
		return nil, err.Error()
	}
	return root, ""
}

const tooDeep = "more than 64 brackets are open at once; close some"

// TestBracketsInTextDoNotCount: 70 items, each with a bracket in a text.
func TestBracketsInTextDoNotCount(t *testing.T) {
	t.Parallel()
	for _, item := range []string{
		"a # team 3 [see wiki",
		"a # {",
		"a\n  # [ { [[",
		"'Slow down :-[ …'",
		"'it''s [ {'",
		`"Slow down :-[ …"`,
		`"\" [ {"`,
		"\"[\n    {\"",
		"Slow down :-[ …",
		"a[0]{",
		"a\n    [ b",
		"|\n    [ {\n    # [",
		">-\n    [ {\n    {[",
		`[a, '[', "{" , b] # [`,
		"{a: '[', b: \"{\"} # {",
		"[a, # [\n    b]",
		"'[key': '{'",
	} {
		if _, wrong := tree("list:\n" + strings.Repeat("  - "+item+"\n", 70)); wrong != "" {
			t.Errorf("%s: %s", item, wrong)
		}
	}
	if _, wrong := tree("a: ['" + strings.Repeat(strings.Repeat(",", MaxMembers/2)+"\n  ", 3) + "']\n"); wrong != "" {
		t.Errorf("commas in quotes: %s", wrong)
	}
}

// TestOpenBracketsAreCounted: brackets in quotes or in a comment close nothing.
func TestOpenBracketsAreCounted(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, c := range map[string]struct {
		text string
		line int // 0 for a valid file
	}{
		"64":               {"a: " + deep(64) + "\n", 0},
		"65":               {"a: " + deep(65) + "\n", 1},
		"65 of both":       {"a: " + strings.Repeat("{a: [", 32) + "[" + "]" + strings.Repeat("]}", 32) + "\n", 1},
		"in quotes":        {"a:\n" + strings.Repeat("  - "+strings.Repeat("[", 20)+"\n  - \""+strings.Repeat("]", 20)+"\"\n", 3000), 8},
		"most of them":     {"a:\n" + strings.Repeat("  - "+strings.Repeat("[", 60)+"\n  - \""+strings.Repeat("]", 60)+"\"\n", 7800), 4},
		"in single quotes": {"a:\n" + strings.Repeat("  - [\n  - ']'\n", 70), 130},
		"in comments":      {"a:\n" + strings.Repeat("  - [\n  # ]\n", 70), 130},
		"of another kind":  {"a:\n" + strings.Repeat("  - {[}\n", 70), 34},
		"one on a line":    {strings.Repeat("[\n", 70), 65},
		"only these":       {strings.Repeat(strings.Repeat("[", 4000)+"\n", MaxFileBytes/4001), 1},
	} {
		want := ""
		if c.line > 0 {
			want = fmt.Sprintf("f:%d: %s", c.line, tooDeep)
		}
		if _, wrong := tree(c.text); wrong != want {
			t.Errorf("%s: %q, want %q", name, wrong, want)
		}
	}
}

// TestFilesSlowToParseAreRejected: these files took the parser more than 20 seconds, or a GB of
// memory.
func TestFilesSlowToParseAreRejected(t *testing.T) {
	t.Parallel()
	fill := func(part string) string { return strings.Repeat(part, (MaxFileBytes-1000)/len(part)) }
	const blank, items = "more than 100 blank lines in a row; remove some", "more than 32768 list items; make it short"
	const names = "more than 2000 lines with the same indent, the most names that a mapping may have; use lists, or put more on a line"
	for name, c := range map[string]struct{ text, want string }{
		"blank lines behind text":  {"a: |\n  x\n" + fill("\n"), "f:103: " + blank},
		"blank lines with spaces":  {"a: |\n  x\n" + fill("  \n"), "f:103: " + blank},
		"carriage returns":         {"a: |\r  x" + fill("\r"), "f:103: " + blank},
		"both":                     {"a: |\r\n  x\r\n" + fill("\r\n"), "f:103: " + blank},
		"100 blank lines":          {"a: |\n  x\n" + strings.Repeat("\n", 100) + "b: c\n", ""},
		"many items on each line":  {fill(strings.Repeat("- ", 19) + "\n"), "f:1725: " + items},
		"lists within each other":  {strings.Repeat(strings.Repeat("- ", 500)+"[\n", 60), "f:1: more than 64 lists begin on one line; split it"},
		"an item on each of 32768": {strings.Repeat("- a\n", 32768), ""},
		"names that begin with -":  {fill("-a: 1\n"), "f:2001: " + names},
		"lists beside their names": {strings.Repeat("a:\n- x\n", 3000), "f:4001: " + names},
		"a dash on its own line":   {strings.Repeat("-\n  a: 1\n", 3000), ""},
		"names of many mappings":   {strings.Repeat("- a: 1\n  b: 2\n", 3000), ""},
	} {
		p := New(Format{Name: "list", Want: "list", Shorten: "make it short"})
		p.parseYAML([]byte(c.text))
		got := ""
		if err := p.Err("f"); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// nesting is how deep lists and mappings in brackets are nested.
type nesting struct {
	depth int
	most  *int
}

func (n nesting) Visit(node ast.Node) ast.Visitor {
	switch node := node.(type) {
	case *ast.SequenceNode:
		if node.IsFlowStyle {
			n.depth++
		}
	case *ast.MappingNode:
		if node.IsFlowStyle {
			n.depth++
		}
	}
	*n.most = max(*n.most, n.depth)
	return n
}

func nested(root ast.Node) (most int) {
	ast.Walk(nesting{most: &most}, root)
	return most
}

// TestNestingBoundMatchesParser: of random texts, those that are accepted are not nested deeper
// than the bound, and those that are rejected because of their brackets are, if they are YAML at
// all.
func TestNestingBoundMatchesParser(t *testing.T) {
	t.Parallel()
	pieces := []string{"[", "]", "{", "}", "{a: ", "'", `"`, "''", `\"`, "# ", " #", "\n", "\n  ", " ", "a", ": ", "a: ", ", ", "- ", "|\n", ">\n"}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(1, 12).Draw(t, "parts") {
			n := rapid.SampledFrom([]int{1, 1, 2, 40, 64, 65}).Draw(t, "times")
			b.WriteString(strings.Repeat(strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 3).Draw(t, "part"), ""), n))
		}
		root, wrong := tree(b.String())
		if root != nil && nested(root) > maxNesting {
			t.Fatalf("%d levels are read", nested(root))
		}
		if !strings.HasSuffix(wrong, tooDeep) {
			return
		}
		if f, err := parser.ParseBytes([]byte(b.String()), 0, parser.AllowDuplicateMapKey()); err == nil {
			most := 0
			for _, d := range f.Docs {
				if d.Body != nil {
					most = max(most, nested(d.Body))
				}
			}
			if most <= maxNesting {
				t.Fatalf("%d levels are rejected", most)
			}
		}
	})
}

// TestNestingBoundIsExactForValidFiles: lists and mappings in brackets, whatever brackets their
// texts have, are rejected exactly if they are nested deeper than the bound.
func TestNestingBoundIsExactForValidFiles(t *testing.T) {
	t.Parallel()
	inside := []string{"a", `"]["`, `'}{'`, "'it''s ]'", `"\"["`}
	beside := append([]string{"a ] } [ {", "|\n    ]]\n    [[", ">\n    }{"}, inside...)
	comments := []string{"", "", " # ]", " # [{"}
	rapid.Check(t, func(t *rapid.T) {
		text := func(from []string) string { return rapid.SampledFrom(from).Draw(t, "text") }
		var b strings.Builder
		most := 0
		b.WriteString("list:\n")
		for range rapid.IntRange(1, 5).Draw(t, "items") {
			b.WriteString("  - ")
			depth := rapid.SampledFrom([]int{0, 0, 1, 10, 63, 64, 65}).Draw(t, "depth")
			most = max(most, depth)
			var ends []string
			for range depth {
				switch rapid.IntRange(0, 3).Draw(t, "level") {
				case 0:
					b.WriteString("[" + text(inside) + ", ")
					ends = append(ends, "]")
				case 1:
					b.WriteString("[" + text(comments) + "\n    ")
					ends = append(ends, ", "+text(inside)+"]")
				case 2:
					b.WriteString("{" + text(inside) + ": ")
					ends = append(ends, "}")
				default:
					b.WriteString("{a: " + text(inside) + ", b: ")
					ends = append(ends, "\n    }")
				}
			}
			if depth > 0 {
				b.WriteString(text(inside))
			} else {
				b.WriteString(text(beside))
			}
			for len(ends) > 0 {
				b.WriteString(ends[len(ends)-1])
				ends = ends[:len(ends)-1]
			}
			b.WriteString("\n  #" + text(comments) + "\n")
		}
		root, wrong := tree(b.String())
		switch deep := strings.HasSuffix(wrong, tooDeep); {
		case deep != (most > maxNesting) || !deep && wrong != "":
			t.Fatalf("%d levels: %q", most, wrong)
		case root != nil && nested(root) != most:
			t.Fatalf("%d levels, and %d are read", most, nested(root))
		}
	})
}

// TestLargestFileIsRead, and of one that has a byte more nothing: what was read of it could be a valid file.
func TestLargestFileIsRead(t *testing.T) {
	t.Parallel()
	const comment = "# 8 bytes\n"
	text := string(version(1))
	text += strings.Repeat(comment, (MaxFileBytes-len(text))/len(comment)-1)
	text += strings.Repeat("#", MaxFileBytes-len(text))
	for more, want := range map[string]string{"": "", "\n": "f:1: the file has more than 1048576 bytes; "} {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, []byte(text+more))
		data, err := ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = parsePair("f", data); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%d bytes: %v, want %q", len(text+more), err, want)
		}
	}
}

// TestBoundsOfLinesAreInclusive: as much as the messages say is accepted.
func TestBoundsOfLinesAreInclusive(t *testing.T) {
	t.Parallel()
	for want, line := range map[string]func(more int) string{
		"the line has more than 4096 bytes; split it":               func(more int) string { return "#" + strings.Repeat("x", 4095+more) + "\n" },
		"more than 100 blank lines in a row; remove some":           func(more int) string { return strings.Repeat(" \n", 100+more) },
		"the line is indented by more than 256 spaces; indent by 2": func(more int) string { return "b:\n" + strings.Repeat(" ", 256+more) + "- x\n" },
		"more than 64 brackets are open at once; close some": func(more int) string {
			return "b: " + strings.Repeat("[", 64+more) + strings.Repeat("]", 64+more) + "\n"
		},
		"more than 64 lists begin on one line; split it":            func(more int) string { return "b:\n  " + strings.Repeat("- ", 64+more) + "x\n" },
		"more than 2000 values in one pair of brackets; put each":   func(more int) string { return "b: [x" + strings.Repeat(",x", 2000+more) + "]\n" },
		"more than 2000 lines with the same indent, the most names": func(more int) string { return "b:\n" + strings.Repeat("  x: 1\n", 2000+more) },
	} {
		if _, wrong := tree("a: x\n" + line(0) + "c: x\n"); wrong != "" {
			t.Errorf("as much as is allowed: %s", wrong)
		}
		if _, wrong := tree("a: x\n" + line(1) + "c: x\n"); !strings.Contains(wrong, want) {
			t.Errorf("one more: %s, want %s", wrong, want)
		}
	}
}
