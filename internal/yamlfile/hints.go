package yamlfile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

const (
	quoteHint  = `; quote texts that contain { } [ ] or * & or a colon and a space, such as "x:{user}"`
	columnHint = `, and start all fields of a mapping in the same column`
)

// hints say how to correct a mistake that the YAML library reports in its own words. part is a part of its message. The first
// hint that fits is used.
var hints = []struct{ part, hint string }{
	{"is a reserved character", "; quote the text"},
	{"'\t' that cannot start any token", "; indent with spaces, not with tabs"},
	{"tab character cannot use as a map key directly", "; separate with spaces, not with tabs"},
	{"must be specified", quoteHint}, // the message begins with ',' or '}'
	{"could not find flow map content", quoteHint},
	{"unexpected scalar value type", quoteHint},
	{"undefined alias name", quoteHint},
	{"undefined anchor value", quoteHint},
	{"unexpected directive value", "; quote a text that begins with %"},
	{"not allowed in this context", quoteHint + columnHint},
}

// hint returns a text to append to a message of the library about a line; "" for none.
func hint(message string, data []byte, line int) string {
	if h := spaceHint(data, line); h != "" {
		return h
	}
	for _, h := range hints {
		if strings.Contains(message, h.part) {
			return h.hint
		}
	}
	return ""
}

// spaceHint returns the hint for a line with a space that is none in YAML, as it comes from web pages and word processors;
// "" for others.
func spaceHint(data []byte, line int) string {
	n := 0
	for text := range bytes.Lines(data) {
		if n++; n != line {
			continue
		}
		for _, c := range string(text) {
			if c > unicode.MaxASCII && unicode.IsSpace(c) {
				return fmt.Sprintf("; the line has the space %U, which is none in YAML; type it anew", c)
			}
		}
	}
	return ""
}

// quotesHint is for a text in the place of a number or a bool: with quotes every value is a text.
func quotesHint(n ast.Node) string {
	if s, ok := n.(*ast.StringNode); ok && !isPlain(n) && (numeric.MatchString(s.Value) || s.Value == "true" || s.Value == "false") {
		return "; remove the quotes"
	}
	return ""
}

// bracesHint is for a mapping in the place of a text: an unquoted {user} is a mapping.
func bracesHint(n ast.Node) string {
	if m, ok := n.(*ast.MappingNode); ok && m.IsFlowStyle {
		return `; quote a text that contains { }, such as "x:{user}"`
	}
	return ""
}

// checkUTF8 reports a file in another encoding once; otherwise each of its characters would be a mistake.
func (p *Problems) checkUTF8(data []byte) bool {
	n := 0
	for line := range bytes.Lines(data) {
		if n++; !utf8.Valid(line) {
			p.lines[""] = n
			p.Add("", "the file is not in UTF-8; save it as UTF-8")
			return false
		}
	}
	return true
}

// isDuration reports whether the field at a path is a duration.
func (p *Problems) isDuration(path string) bool {
	return slices.Contains(p.format.Durations, path[strings.LastIndexByte(path, '.')+1:])
}
