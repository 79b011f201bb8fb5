package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The YAML is parsed by a library and then read from its tree into Go types, instead of being unmarshalled:
// that way all mistakes are found, not the first, and the checks that follow know the line of every value.

// parseYAML gives the tree of the only document; nil after a mistake.
func (p *Problems) parseYAML(data []byte) (root ast.Node) {
	defer func() {
		if v := recover(); v != nil { // a file that breaks the library must not take a worker with it
			root = nil
			p.Add("", "the YAML cannot be read: %v", v)
		}
	}()
	if isUTF16(data) {
		p.Add("", "the file is in UTF-16; save it as UTF-8")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark; to the library it is part of the first name
	// All ends of lines as one: to the library those of Windows are two in places, and a part of texts in others.
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	if !p.isUTF8(data) || !p.boundYAML(data) {
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if !p.boundTokens(tokens) {
		return nil
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p.syntax(err)
		return nil
	}
	for _, d := range f.Docs {
		if d.Body == nil || d.Body.Type() == ast.DirectiveType { // such as %YAML 1.2, to the library a document
			continue
		}
		if root != nil {
			p.lines["document"] = d.Body.GetToken().Position.Line
			p.Add("document", "%s", p.format.second())
			return nil
		}
		root = d.Body
	}
	if root == nil {
		p.Add("", "the file is empty; want %s:", p.format.Want)
	}
	return root
}

// isUTF16 knows UTF-16, as editors on Windows and redirections of PowerShell write it, by its byte order mark, or by the zero in
// one of the bytes of its first character.
func isUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) ||
		len(data) > 1 && (data[0] == 0) != (data[1] == 0)
}

func (p *Problems) syntax(err error) {
	message := "invalid YAML: " + strings.Split(err.Error(), "\n")[0]
	var ye yaml.Error
	if errors.As(err, &ye) {
		message = "invalid YAML: " + ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			p.lines[""] = max(1, t.Position.Line)
		}
	}
	if p.format.Private {
		message, _, _ = strings.Cut(message, `: "`) // behind which the library shows the text
	}
	p.Add("", "%s%s", message, hint(message))
}

// Reader is a type that is read in a way of its own. What it cannot be, it adds to the problems.
type Reader interface {
	ReadYAML(p *Problems, n ast.Node, path string)
}

// Read reads a file into v, a pointer to a struct, by the names of its json tags: structs, maps of text, slices, pointers,
// texts, int64, float64, bool, and what is a [Reader]. It is false when there is nothing to check further.
func (p *Problems) Read(data []byte, v any) bool {
	if len(data) > MaxFileBytes {
		p.Add("", "the file has more than %d bytes; %s", MaxFileBytes, p.format.Shorten)
		return false
	}
	root := p.parseYAML(data)
	if root == nil {
		return false
	}
	p.read(root, reflect.ValueOf(v).Elem(), "")
	return true
}

// read reads a node into v, whose type says what it may be.
func (p *Problems) read(n ast.Node, v reflect.Value, path string) {
	if t := n.GetToken(); p.lines[path] == 0 && t != nil && t.Position != nil {
		p.lines[path] = t.Position.Line
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		p.Add(path, "anchors, aliases and tags are not taken; write the value out, and quote a text that begins with &, * or !")
		return
	case *ast.NullNode:
		p.Add(path, "has no value; give one, or remove it")
		return
	default:
		p.readInto(n, v, path)
	}
}

func (p *Problems) readInto(n ast.Node, v reflect.Value, path string) {
	if r, ok := v.Addr().Interface().(Reader); ok {
		r.ReadYAML(p, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		p.object(n, v, path)
	case reflect.Map:
		p.dictionary(n, v, path)
	case reflect.Slice:
		p.sequence(n, v, path)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		p.readInto(n, v.Elem(), path)
	case reflect.String:
		v.SetString(p.Text(n, path))
	case reflect.Int64:
		v.SetInt(p.Integer(n, path, "a whole number"))
	case reflect.Float64:
		v.SetFloat(p.number(n, path))
	case reflect.Bool:
		v.SetBool(p.boolean(n, path))
	}
}

// object reads a mapping whose names are fields.
func (p *Problems) object(n ast.Node, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	names := gatherFields(v, fields, nil)
	p.members(n, path, fmt.Sprintf("a mapping with %s", strings.Join(names, ", ")), func(name string, value ast.Node, at string) {
		field, ok := fields[name]
		if !ok {
			p.Add(at, "unknown field%s%s; want one of %s", p.shownName(" ", name), DidYouMean(name, names), strings.Join(names, ", "))
			return
		}
		p.read(value, field, at)
	})
}

// gatherFields finds the fields of a struct by name, those of embedded ones too.
func gatherFields(v reflect.Value, fields map[string]reflect.Value, names []string) []string {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			names = gatherFields(v.Field(i), fields, names)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = v.Field(i)
		names = append(names, name)
	}
	return names
}

// dictionary reads a mapping whose names are free.
func (p *Problems) dictionary(n ast.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	p.members(n, path, "a mapping", func(name string, value ast.Node, at string) {
		elem := reflect.New(v.Type().Elem()).Elem()
		p.read(value, elem, at)
		v.SetMapIndex(reflect.ValueOf(name), elem)
	})
	if v.Len() == 0 && !p.Has(path) {
		p.Add(path, "is empty; fill it, or remove it")
	}
}

// members calls member for each name of a mapping.
func (p *Problems) members(n ast.Node, path, want string, member func(name string, value ast.Node, at string)) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		p.Add(path, "must be %s; got %s", want, p.Kind(n))
		return
	}
	seen := map[string]bool{}
	for _, m := range values {
		key, ok := m.Key.(*ast.StringNode)
		if !ok {
			at := p.join(path, m.Key.String())
			p.lines[at] = m.Key.GetToken().Position.Line
			p.Add(at, "%s", p.badName(m.Key))
			continue
		}
		at := p.join(path, key.Value)
		p.lines[at] = key.GetToken().Position.Line
		if seen[key.Value] {
			p.Add(at, "is given twice; remove one")
			continue
		}
		seen[key.Value] = true
		member(key.Value, m.Value, at)
	}
}

// badName tells of a name that is no plain text.
func (p *Problems) badName(n ast.MapKeyNode) string {
	switch n.(type) {
	case *ast.MergeKeyNode:
		return "<< (merge) is not taken; write the fields out"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MappingKeyNode:
		return "a name must be plain text, without anchor, alias, tag or ?; write it alone, or quote it"
	default:
		return "a name must be plain text; quote " + cmp.Or(p.shownName("", n.String()), "it")
	}
}

// fieldLike is what names of fields are made of, also mistaken ones, and secrets hardly.
var fieldLike = regexp.MustCompile(`^[A-Za-z_-]{1,32}$`)

// hides says of a name that it may be a secret which slipped into its place, as a URL does that is written where a mapping belongs.
func (p *Problems) hides(name string) bool { return p.format.Private && !fieldLike.MatchString(name) }

func (p *Problems) shownName(before, name string) string {
	if p.hides(name) {
		return ""
	}
	return before + Quote(name)
}

// join is [Join] for a name of the file.
func (p *Problems) join(path, name string) string {
	if !p.hides(name) {
		return Join(path, name)
	}
	for n := 1; ; n++ { // each has a path of its own, or one would keep the others from being told of
		if at := Join(path, strings.Repeat(hidden, n)); !p.Given(at) {
			return at
		}
	}
}

// hidden stands in a path for a name that is not shown.
const hidden = "…"

var plainStep = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Join adds a name to a path.
func Join(path, name string) string {
	switch {
	case !plainStep.MatchString(name):
		return path + "[" + Quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// Index adds a place in a list to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (p *Problems) sequence(n ast.Node, v reflect.Value, path string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		p.Add(path, "must be a list; got %s", p.Kind(n))
		return
	}
	if len(seq.Values) == 0 {
		p.Add(path, "is empty; fill it, or remove it")
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, value := range seq.Values {
		p.read(value, v.Index(i), Index(path, i))
	}
}

// OneOrMany reads a list, or one value as a list of it, into a pointer to a slice.
func (p *Problems) OneOrMany(n ast.Node, list any, path string) {
	v := reflect.ValueOf(list).Elem()
	if _, ok := n.(*ast.SequenceNode); ok {
		p.sequence(n, v, path)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	p.readInto(n, v.Index(0), path)
}

// Text reads a line of text.
func (p *Problems) Text(n ast.Node, path string) string { return p.text(n, path, "") }

// Lines reads text that may have several lines.
func (p *Problems) Lines(n ast.Node, path string) string { return p.text(n, path, "\n") }

func (p *Problems) text(n ast.Node, path, allowed string) string {
	var s string
	switch n := n.(type) {
	case *ast.StringNode:
		if s = n.Value; isPlain(n) && numeric.MatchString(s) {
			return p.unquoted(n, path)
		}
	case *ast.LiteralNode:
		s = strings.TrimRight(n.Value.Value, "\n")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return p.unquoted(n, path)
	default:
		p.Add(path, "must be text; got %s%s", p.Kind(n), bracesHint(n))
		return ""
	}
	if s == "" {
		p.Add(path, "is empty; fill it, or remove it")
	}
	for _, c := range s {
		if !strings.ContainsRune(allowed, c) && (!unicode.IsPrint(c) || c == unicode.ReplacementChar) {
			p.Add(path, "%sholds the character %U, which is not printable; remove it", p.shown("", s, " "), c)
			break
		}
	}
	return s
}

// unquoted tells of text that stands there as something else.
func (p *Problems) unquoted(n ast.Node, path string) string {
	if p.isDuration(path) { // in quotes it would be the next mistake
		p.Add(path, "%swant a number with a unit, such as 60s", p.shown("", n.String(), " has no unit; "))
		return ""
	}
	p.Add(path, "must be text; quote it%s", p.shown(": ", n.String()))
	return ""
}

// shown gives a text in quotes between others, and nothing where it may be secret.
func (p *Problems) shown(before, text string, behind ...string) string {
	if p.format.Private {
		return ""
	}
	return before + Quote(text) + strings.Join(behind, "")
}

// Integer reads a whole number in decimal; YAML's other ways to write one (0x10, 010, 1_000) are mistaken too easily.
func (p *Problems) Integer(n ast.Node, path, want string) int64 {
	text := n.GetToken().Value
	if _, ok := n.(*ast.IntegerNode); ok || isPlain(n) && digits.MatchString(text) {
		if v, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(v, 10) == text {
			return v
		}
		p.Add(path, "%s is not a number in plain decimal digits, or too large; write it without +, _, letters and 0 in front", Quote(text))
		return 0
	}
	p.Add(path, "must be %s; got %s", want, p.Kind(n))
	return 0
}

var (
	// numeric is a number, also such as the library takes for text when it stands without quotes: 1e-05, and one of 20 digits.
	numeric = regexp.MustCompile(`^[-+]?\d+(\.\d*)?([eE][-+]?\d+)?$`)
	// digits are a whole number, of whatever size.
	digits = regexp.MustCompile(`^[-+]?\d+$`)
	// plainNumber is a number in the forms that nobody mistakes, as [Problems.Integer] has them.
	plainNumber = regexp.MustCompile(`^-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?$`)
)

// isPlain tells of a number, and of text without quotes.
func isPlain(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return true
	case *ast.StringNode:
		return n.Token.Type == token.StringType
	}
	return false
}

func (p *Problems) number(n ast.Node, path string) float64 {
	if text := n.GetToken().Value; isPlain(n) && plainNumber.MatchString(text) {
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			return v
		}
	}
	p.Add(path, "must be a number in plain decimal digits such as 0.5; got %s", p.Kind(n))
	return 0
}

func (p *Problems) boolean(n ast.Node, path string) bool {
	if b, ok := n.(*ast.BoolNode); ok {
		return b.Value
	}
	p.Add(path, "must be true or false; got %s", p.Kind(n))
	return false
}

// Kind says what a node is, and shows it where it is short.
func (p *Problems) Kind(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode:
		if p.format.Private {
			return "text"
		}
		return "the text " + Quote(n.Value)
	case *ast.LiteralNode:
		return "text"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return "an anchor, alias or tag"
	default:
		if p.format.Private {
			return "a number or a word"
		}
		return Quote(n.String())
	}
}
