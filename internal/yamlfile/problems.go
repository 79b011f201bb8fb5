package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a file.
type Problem struct {
	Line          int
	Path, Message string
}

// Error lists the mistakes of a file, in the order of their lines.
type Error struct {
	File     string
	Problems []Problem
	// More says that there are more mistakes than listed.
	More bool
}

// Error returns one line for each mistake: "file:line: path: what is wrong; how to correct it".
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s:%d: ", e.File, p.Line)
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Message)
	}
	if e.More {
		fmt.Fprintf(&b, "\n%s:%d: there are more mistakes; fix these first", e.File, e.Problems[len(e.Problems)-1].Line)
	}
	return b.String()
}

// maxProblems is how many mistakes of one file are listed.
const maxProblems = 100

// Problems reads a file and collects its mistakes.
type Problems struct {
	format Format
	lines  map[string]int // the line of each path in the file
	list   []Problem
	more   bool // there were mistakes beyond maxProblems
	// reported are the paths that have a problem. Another one at or below such a path mostly follows from it.
	reported map[string]bool
}

// New returns a Problems to read one file with.
func New(f Format) *Problems {
	return &Problems{format: f, lines: map[string]int{"": 1}, reported: map[string]bool{}}
}

// Format adapts the messages to a kind of file.
type Format struct {
	// Name is what such a file is called, such as "policy file". Want is the field that it has to begin with.
	Name, Want string
	// Shorten says what to do about a file that is too long.
	Shorten string
	// Private keeps out of the messages what may be a secret: texts in the place of other values, and names that do not look
	// like fields.
	Private bool
	// Durations are the names of the fields that are durations.
	Durations []string
}

// secondDocument is the message about a file with more than one YAML document.
func (f *Format) secondDocument() string {
	return "a second YAML document; " + article(f.Name) + " has only one; remove the ---"
}

func article(name string) string {
	if strings.ContainsRune("aeiou", rune(name[0])) {
		return "an " + name
	}
	return "a " + name
}

// Add reports a mistake at a path. Further mistakes at the same path are ignored.
func (p *Problems) Add(path, format string, args ...any) {
	if p.reported[path] {
		return
	}
	if len(p.list) == maxProblems {
		p.more = true
		return
	}
	p.reported[path] = true
	p.list = append(p.list, Problem{Line: p.line(path), Path: path, Message: fmt.Sprintf(format, args...)})
}

// Given reports whether the path exists in the file.
func (p *Problems) Given(path string) bool { _, ok := p.lines[path]; return ok }

// Reported reports whether there is a mistake at exactly this path.
func (p *Problems) Reported(path string) bool { return p.reported[path] }

// Any reports whether there is any mistake.
func (p *Problems) Any() bool { return len(p.list) > 0 }

// line returns the line of a path or, if the file does not have the path, that of its nearest parent.
func (p *Problems) line(path string) int {
	for {
		if n, ok := p.lines[path]; ok {
			return n
		}
		path = parent(path)
	}
}

// parent removes the last step of a path such as a.b[2]["x.y"], or a part of it, which is no path of any file.
func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// Has reports whether there is a mistake at or below the path.
func (p *Problems) Has(path string) bool {
	for reported := range p.reported {
		if rest, below := strings.CutPrefix(reported, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// Err returns the mistakes as an *[Error]; nil if there are none.
func (p *Problems) Err(file string) error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Path, b.Path)) })
	return &Error{File: file, Problems: p.list, More: p.more}
}

// Quote quotes a text of the file for a message, and shortens it.
func Quote(s string) string {
	const maxBytes = 64
	if len(s) > maxBytes {
		s = strings.ToValidUTF8(s[:maxBytes], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// FirstNames lists the first names, separated by commas.
func FirstNames[T any](all []T, name func(T) string) string {
	const most = 20
	var names []string
	for i := range min(len(all), most) {
		names = append(names, name(all[i]))
	}
	text := strings.Join(names, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// DidYouMean suggests the known word that is most similar to word; "" if none is similar. It is searched for when the
// suggestion is formatted: of the mistakes that [Problems.Add] does not list, there may be thousands.
func DidYouMean(word string, known []string) fmt.Stringer { return suggestion{word, known} }

type suggestion struct {
	word  string
	known []string
}

func (s suggestion) String() string {
	best, least := "", 1+len(s.word)/3
	for _, k := range s.known {
		if d := distance(s.word, k); d <= least {
			best, least = k, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is the Levenshtein distance of two short words; 99 for long ones.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
