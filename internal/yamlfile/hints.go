package yamlfile

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

const (
	quoteHint  = `; quote texts that hold { } [ ] or * & or a colon and a space, such as "x:{user}"`
	columnHint = `, and begin all fields of a mapping in one column`
)

// hints say what to do about what the library tells of a file in its own words, by a part of these. The first that fits counts.
var hints = []struct{ part, hint string }{
	{"is a reserved character", "; quote the text"},
	{"'\t' that cannot start any token", "; indent with spaces, not with tabs"},
	{"must be specified", quoteHint}, // ',' or '}' in front
	{"could not find flow map content", quoteHint},
	{"unexpected scalar value type", quoteHint},
	{"undefined alias name", quoteHint},
	{"undefined anchor value", quoteHint},
	{"unexpected directive value", "; quote a text that begins with %"},
	{"not allowed in this context", quoteHint + columnHint},
}

// hint gives what to do, behind the library's words; empty when these are enough.
func hint(message string) string {
	for _, h := range hints {
		if strings.Contains(message, h.part) {
			return h.hint
		}
	}
	return ""
}

// bracesHint is for a mapping in the place of a text: {user} is one.
func bracesHint(n ast.Node) string {
	if m, ok := n.(*ast.MappingNode); ok && m.IsFlowStyle {
		return `; quote a text that holds { }, such as "x:{user}"`
	}
	return ""
}

// isUTF8 tells once of a file in another encoding: its characters would be blamed one by one.
func (p *Problems) isUTF8(data []byte) bool {
	for line, n := data, 1; len(line) > 0; n++ {
		one, rest, _ := bytes.Cut(line, []byte("\n"))
		if !utf8.Valid(one) {
			p.lines[""] = n
			p.Add("", "the file is not in UTF-8; save it as UTF-8")
			return false
		}
		line = rest
	}
	return true
}

// isDuration says of a path that its field is a duration.
func (p *Problems) isDuration(path string) bool {
	return slices.Contains(p.format.Durations, path[strings.LastIndexByte(path, '.')+1:])
}
