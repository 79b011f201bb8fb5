package yamlfile

import (
	"bytes"

	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser recurses with each level and with each name of a mapping, so both are counted before it
// sees them: brackets as the parser will have them, and all else by lines, and so a little rough.
const (
	// MaxFileBytes is the size of a file.
	MaxFileBytes = 1 << 20
	maxLineBytes = 4096
	maxIndent    = 256
	maxNesting   = 64
	// MaxMembers is how many names a mapping has.
	MaxMembers = 2000
	maxItems   = 32_768
	// maxBlank lines may follow each other: behind a block of text the scanner copies all of it for each.
	maxBlank = 100
)

// boundYAML tells of a file whose lines, each with a line feed at its end, are too much for the parser.
func (p *Problems) boundYAML(data []byte) bool {
	b := bounds{format: &p.format}
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if what := b.line(bytes.TrimRight(text, " \n")); what != "" {
			p.lines[""] = line
			p.Add("", "%s", what)
			return false
		}
	}
	return true
}

// bounds counts lines.
type bounds struct {
	format *Format
	// names are the lines of the mapping at each indent.
	names [maxIndent + 1]int
	marks int
	blank int
}

func (b *bounds) line(text []byte) string {
	rest := bytes.TrimLeft(text, " ")
	indent := len(text) - len(rest)
	if b.blank++; len(rest) > 0 {
		b.blank = 0
	}
	switch {
	case len(text) > maxLineBytes:
		return "the line has more than 4096 bytes; break it"
	case b.blank > maxBlank:
		return "more than 100 blank lines behind each other; remove some"
	case len(rest) == 0 || rest[0] == '#':
		return ""
	case indent > maxIndent:
		return "the line is indented by more than 256 spaces; indent by 2"
	}
	clear(b.names[indent+1:])
	item := rest[0] == '-' && (len(rest) == 1 || rest[1] == ' ')
	if !item && len(bytes.Trim(rest, "]},")) > 0 { // a line that only ends brackets has no name
		b.names[indent]++
	}
	if b.names[indent] > MaxMembers {
		return "more than 2000 lines with one indent, as many as a mapping has names; write lists instead, or more on a line"
	}
	if bytes.HasPrefix(text, []byte("---")) {
		if b.marks++; b.marks > 2 {
			return b.format.second()
		}
	}
	return ""
}

// boundTokens tells of brackets and of items of lists that are too much for the parser. It counts the tokens that the
// parser is given: a bracket in quotes, in a comment or within other text is none, and opens and closes nothing.
func (p *Problems) boundTokens(tokens token.Tokens) bool {
	var b brackets
	items, line, here := 0, 0, 0
	for _, t := range tokens {
		what := b.token(t.Type)
		if t.Type == token.SequenceEntryType {
			if t.Position.Line != line {
				line, here = t.Position.Line, 0
			}
			if here++; here > maxNesting {
				what = "more than 64 lists begin on one line; break it"
			}
			if items++; items > maxItems {
				what = "more than 32768 items of lists; " + p.format.Shorten
			}
		}
		if what != "" {
			p.lines[""] = t.Position.Line
			p.Add("", "%s", what)
			return false
		}
	}
	return true
}

// brackets are those that are open at a token.
type brackets []bracket

type bracket struct {
	// end closes it; another one that stands there leaves the parser as deep as it is.
	end   token.Type
	parts int
}

func (b *brackets) token(t token.Type) string {
	last := len(*b) - 1
	switch t {
	case token.SequenceStartType:
		return b.open(token.SequenceEndType)
	case token.MappingStartType:
		return b.open(token.MappingEndType)
	case token.SequenceEndType, token.MappingEndType:
		if last >= 0 && (*b)[last].end == t {
			*b = (*b)[:last]
		}
	case token.CollectEntryType:
		if last < 0 {
			break
		}
		if (*b)[last].parts++; (*b)[last].parts > MaxMembers {
			return "more than 2000 values in one pair of brackets; write a line for each"
		}
	}
	return ""
}

func (b *brackets) open(end token.Type) string {
	if len(*b) == maxNesting {
		return "more than 64 brackets are open; close them"
	}
	*b = append(*b, bracket{end: end})
	return ""
}
