package yamlfile

import (
	"bytes"

	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser recurses for each level and for each name of a mapping, so both are bounded before the file
// is parsed. Brackets are counted exactly, from the tokens. Everything else is counted by lines, and therefore roughly.
const (
	// MaxFileBytes is the largest size of a file.
	MaxFileBytes = 1 << 20
	maxLineBytes = 4096
	maxIndent    = 256
	maxNesting   = 64
	// MaxMembers is how many names a mapping may have.
	MaxMembers = 2000
	maxItems   = 32_768
	// maxBlank is how many blank lines may follow each other. After a block of text the scanner copies the block for each.
	maxBlank = 100
)

// checkLines reports a file whose lines are too much for the parser. Lines end with a line feed.
func (p *Problems) checkLines(data []byte) bool {
	b := lineBounds{format: &p.format}
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

// lineBounds counts what the lines of a file contain.
type lineBounds struct {
	format *Format
	// names counts, for each indent, the lines with names of the current mapping.
	names   [maxIndent + 1]int
	markers int // lines that begin with ---
	blank   int // blank lines in a row
}

// line counts a line. It returns a message if the line is too much.
func (b *lineBounds) line(text []byte) string {
	rest := bytes.TrimLeft(text, " ")
	indent := len(text) - len(rest)
	if b.blank++; len(rest) > 0 {
		b.blank = 0
	}
	switch {
	case len(text) > maxLineBytes:
		return "the line has more than 4096 bytes; split it"
	case b.blank > maxBlank:
		return "more than 100 blank lines in a row; remove some"
	case len(rest) == 0 || rest[0] == '#':
		return ""
	case indent > maxIndent:
		return "the line is indented by more than 256 spaces; indent by 2"
	}
	clear(b.names[indent+1:])
	item := rest[0] == '-' && (len(rest) == 1 || rest[1] == ' ')
	if !item && len(bytes.Trim(rest, "]},")) > 0 { // a line of only closing brackets has no name
		b.names[indent]++
	}
	if b.names[indent] > MaxMembers {
		return "more than 2000 lines with the same indent, the most names that a mapping may have; use lists, or put more on a line"
	}
	if bytes.HasPrefix(text, []byte("---")) {
		if b.markers++; b.markers > 2 {
			return b.format.secondDocument()
		}
	}
	return ""
}

// checkTokens reports brackets and list items that are too much for the parser. It counts the tokens that the parser gets,
// so a bracket in quotes, in a comment or within text does not count.
func (p *Problems) checkTokens(tokens token.Tokens) bool {
	var b openBrackets
	items, line, onLine := 0, 0, 0
	for _, t := range tokens {
		what := b.token(t.Type)
		if t.Type == token.SequenceEntryType {
			if t.Position.Line != line {
				line, onLine = t.Position.Line, 0
			}
			if onLine++; onLine > maxNesting {
				what = "more than 64 lists begin on one line; split it"
			}
			if items++; items > maxItems {
				what = "more than 32768 list items; " + p.format.Shorten
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

// openBrackets are the brackets that are open at a token.
type openBrackets []bracket

type bracket struct {
	// end is the token that closes the bracket. After any other closing token the parser is as deep as before.
	end    token.Type
	values int
}

// token counts a token. It returns a message if the token is too much.
func (b *openBrackets) token(t token.Type) string {
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
		if (*b)[last].values++; (*b)[last].values > MaxMembers {
			return "more than 2000 values in one pair of brackets; put each on its own line"
		}
	}
	return ""
}

func (b *openBrackets) open(end token.Type) string {
	if len(*b) == maxNesting {
		return "more than 64 brackets are open at once; close some"
	}
	*b = append(*b, bracket{end: end})
	return ""
}
