package yamlfile

import "bytes"

// Bounds of a file. The parser recurses with each level and with each name of a mapping, so both are counted before it
// sees them; the counts are those of lines and brackets, and so a little rough.
const (
	// MaxFileBytes is the size of a file.
	MaxFileBytes = 1 << 20
	maxLineBytes = 4096
	maxIndent    = 256
	maxNesting   = 64
	// MaxMembers is how many names a mapping has.
	MaxMembers = 2000
	maxItems   = 32_768
)

// boundYAML tells of a file that is too much for the parser.
func (p *Problems) boundYAML(data []byte) bool {
	b := bounds{format: &p.format}
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if what := b.line(bytes.TrimRight(text, " \r\n")); what != "" {
			p.lines[""] = line
			p.Add("", "%s", what)
			return false
		}
	}
	return true
}

// bounds counts what is open at a line.
type bounds struct {
	format *Format
	// names are the lines of the mapping at each indent; parts are the commas within each open bracket.
	names [maxIndent + 1]int
	parts [maxNesting + 1]int
	depth int
	marks int
	items int
}

func (b *bounds) line(text []byte) string {
	rest := bytes.TrimLeft(text, " ")
	indent := len(text) - len(rest)
	switch {
	case len(text) > maxLineBytes:
		return "the line has more than 4096 bytes; break it"
	case len(rest) == 0 || rest[0] == '#':
		return ""
	case indent > maxIndent:
		return "the line is indented by more than 256 spaces; indent by 2"
	}
	clear(b.names[indent+1:])
	if rest[0] == '-' {
		b.names[indent] = 0
		if b.items++; b.items > maxItems {
			return "more than 32768 lines that begin an item of a list; " + b.format.Shorten
		}
	}
	if b.names[indent]++; b.names[indent] > MaxMembers {
		return "more than 2000 lines in one mapping; write lists instead"
	}
	if bytes.HasPrefix(text, []byte("---")) {
		if b.marks++; b.marks > 2 {
			return b.format.second()
		}
	}
	return b.brackets(rest)
}

func (b *bounds) brackets(text []byte) string {
	for _, c := range text {
		switch c {
		case '[', '{':
			if b.depth++; b.depth > maxNesting {
				return "more than 64 brackets are open; close them"
			}
			b.parts[b.depth] = 0
		case ']', '}':
			b.depth = max(0, b.depth-1)
		case ',':
			if b.parts[b.depth]++; b.depth > 0 && b.parts[b.depth] > MaxMembers {
				return "more than 2000 values in one pair of brackets; write a line for each"
			}
		}
	}
	return ""
}
