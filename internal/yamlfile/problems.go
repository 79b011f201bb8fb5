package yamlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a file.
type Problem struct {
	Line    int    `json:"line"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// Error lists the mistakes of a file, in order of lines.
type Error struct {
	File     string
	Problems []Problem
	// More says that there are others beside.
	More bool
}

// Error gives one mistake a line: file:line: path: what; the fix.
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
		fmt.Fprintf(&b, "\n%s:%d: there are more mistakes; mend these first", e.File, e.Problems[len(e.Problems)-1].Line)
	}
	return b.String()
}

// maxProblems bounds what is told of one file.
const maxProblems = 100

// Problems reads a file and gathers its mistakes; lines knows where each path stands.
type Problems struct {
	format Format
	lines  map[string]int
	list   []Problem
	// more says that there were mistakes beyond the list.
	more bool
	// reported are the paths that have a problem. Another one at or below such a path mostly follows from it.
	reported map[string]bool
}

// New begins a file.
func New(f Format) *Problems {
	return &Problems{format: f, lines: map[string]int{"": 1}, reported: map[string]bool{}}
}

// Format is what the messages say of a kind of file.
type Format struct {
	// Name is what it is called, such as "policy file", and Want the field that it begins with.
	Name, Want string
	// Shorten says what to do about one that is too long.
	Shorten string
	// Private keeps texts out of the messages where they stand in the place of something else, and names that are none of a field:
	// they may be secret.
	Private bool
	// Durations are the names of fields that hold one.
	Durations []string
}

func (f *Format) second() string {
	return "a second YAML document; " + article(f.Name) + " is one: remove the ---"
}

func article(name string) string {
	if strings.ContainsRune("aeiou", rune(name[0])) {
		return "an " + name
	}
	return "a " + name
}

// Add tells a mistake at a path; of several at one path the first counts.
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

// Given tells whether the file has the path.
func (p *Problems) Given(path string) bool { _, ok := p.lines[path]; return ok }

// LocateAt makes problems of a path that the file does not have appear at the line of another one.
func (p *Problems) LocateAt(path, other string) { p.lines[path] = p.line(other) }

// Reported tells whether a problem was reported at exactly this path.
func (p *Problems) Reported(path string) bool { return p.reported[path] }

// Any tells whether anything is wrong.
func (p *Problems) Any() bool { return len(p.list) > 0 }

// line is where the path stands, or else what holds it.
func (p *Problems) line(path string) int {
	for {
		if n, ok := p.lines[path]; ok {
			return n
		}
		path = parent(path)
	}
}

// parent cuts the last step off a path such as a.b[2]["x.y"].
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		return path[:max(0, strings.LastIndex(path, `["`))]
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// Has tells whether something at or below the path is wrong.
func (p *Problems) Has(path string) bool {
	for reported := range p.reported {
		if rest, below := strings.CutPrefix(reported, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// Err gives the error of a file; nil when nothing is wrong.
func (p *Problems) Err(file string) error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Path, b.Path)) })
	return &Error{File: file, Problems: p.list, More: p.more}
}

// Quote shows text of the file in a message.
func Quote(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// DidYouMean names the known word nearest to one, if one is near.
func DidYouMean(word string, known []string) string {
	best, least := "", 1+len(word)/3
	for _, k := range known {
		if d := distance(word, k); d <= least && d < max(len(word), 2) {
			best, least = k, d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is Levenshtein's, of short words; 99 for long ones.
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
