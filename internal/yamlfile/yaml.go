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

// A library parses the YAML into a tree, and this file reads the tree into Go types. Unmarshalling with the library would
// report only the first mistake, and the checks that follow would not know the lines of the values.

// parseYAML returns the tree of the only document; nil if it reported a mistake.
func (p *Problems) parseYAML(data []byte) (root ast.Node) {
	defer func() {
		if v := recover(); v != nil { // a file that makes the library panic must not crash the worker
			root = nil
			p.Add("", "the YAML cannot be read: %v", v)
		}
	}()
	if isUTF16(data) {
		p.Add("", "the file is in UTF-16; save it as UTF-8")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark, which the library would take for a part of the first name
	// Normalize line ends: the library counts \r\n as two in some places, and keeps \r in texts in others.
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	if !p.checkUTF8(data) || !p.checkLines(data) {
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if !p.checkTokens(tokens) {
		return nil
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p.addSyntaxError(err, data)
		return nil
	}
	for _, d := range f.Docs {
		if d.Body == nil || d.Body.Type() == ast.DirectiveType { // a directive such as %YAML 1.2 counts as a document
			continue
		}
		if root != nil {
			p.lines["document"] = d.Body.GetToken().Position.Line
			p.Add("document", "%s", p.format.secondDocument())
			return nil
		}
		root = d.Body
	}
	if root == nil {
		p.Add("", "the file is empty; want %s:", p.format.Want)
	}
	return root
}

// isUTF16 detects UTF-16, which editors on Windows and redirections in PowerShell write, by its byte order mark or by a zero
// in one of the first two bytes.
func isUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) ||
		len(data) > 1 && (data[0] == 0) != (data[1] == 0)
}

// addSyntaxError reports an error of the parser about data.
func (p *Problems) addSyntaxError(err error, data []byte) {
	message := "invalid YAML: " + strings.Split(err.Error(), "\n")[0]
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		message = "invalid YAML: " + ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			p.lines[""] = max(1, t.Position.Line)
		}
	}
	if p.format.Private {
		message, _, _ = strings.Cut(message, `: "`) // after which the library shows the text
	}
	p.Add("", "%s%s", message, hint(message, data, p.lines[""]))
}

// Reader is a type that reads itself from a node. It reports mistakes to p.
type Reader interface {
	ReadYAML(p *Problems, n ast.Node, path string)
}

// Read reads a file into v, a pointer to a struct. Fields are named by their json tags, and may be structs, maps with text
// keys, slices, pointers, strings, int64, float64, bool, or a [Reader]. Read returns false if nothing could be read, so that
// there is nothing to check further.
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

// read reads a node into v, and reports nodes that no field may have.
func (p *Problems) read(n ast.Node, v reflect.Value, path string) {
	if t := n.GetToken(); p.lines[path] == 0 && t != nil && t.Position != nil {
		p.lines[path] = t.Position.Line
	}
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		p.Add(path, "anchors, aliases and tags are not supported; write the value out, and quote a text that begins with &, * or !")
	case *ast.NullNode:
		p.Add(path, "has no value; give one, or remove it")
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
		p.readStruct(n, v, path)
	case reflect.Map:
		p.readMap(n, v, path)
	case reflect.Slice:
		p.readSlice(n, v, path)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		p.readInto(n, v.Elem(), path)
	case reflect.String:
		v.SetString(p.Text(n, path))
	case reflect.Int64:
		v.SetInt(p.Integer(n, path, "a whole number"))
	case reflect.Float64:
		v.SetFloat(p.float(n, path))
	case reflect.Bool:
		v.SetBool(p.boolean(n, path))
	}
}

// readStruct reads a mapping whose names are fields, also those of embedded structs.
func (p *Problems) readStruct(n ast.Node, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	var names []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Anonymous { // its fields follow
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = v.FieldByIndex(f.Index)
		names = append(names, name)
	}
	p.eachMember(n, path, fmt.Sprintf("a mapping with %s", strings.Join(names, ", ")), func(name string, value ast.Node, at string) {
		field, ok := fields[name]
		if !ok {
			p.Add(at, "unknown field%s%s; want one of %s", p.shownName(" ", name), DidYouMean(name, names), strings.Join(names, ", "))
			return
		}
		p.read(value, field, at)
	})
}

// readMap reads a mapping with arbitrary names.
func (p *Problems) readMap(n ast.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	p.eachMember(n, path, "a mapping", func(name string, value ast.Node, at string) {
		elem := reflect.New(v.Type().Elem()).Elem()
		p.read(value, elem, at)
		v.SetMapIndex(reflect.ValueOf(name), elem)
	})
	if v.Len() == 0 && !p.Has(path) {
		p.Add(path, "is empty; fill it, or remove it")
	}
}

// eachMember calls member for each name of a mapping. want describes the mapping in a mistake.
func (p *Problems) eachMember(n ast.Node, path, want string, member func(name string, value ast.Node, at string)) {
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
			at := p.memberPath(path, m.Key.String())
			p.lines[at] = m.Key.GetToken().Position.Line
			p.Add(at, "%s", p.badNameMessage(m.Key))
			continue
		}
		at := p.memberPath(path, key.Value)
		p.lines[at] = key.GetToken().Position.Line
		if seen[key.Value] {
			p.Add(at, "is given twice; remove one")
			continue
		}
		seen[key.Value] = true
		member(key.Value, m.Value, at)
	}
}

// badNameMessage is the message about a name that is not plain text.
func (p *Problems) badNameMessage(n ast.MapKeyNode) string {
	switch n.(type) {
	case *ast.MergeKeyNode:
		return "<< (merge) is not supported; write the fields out"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MappingKeyNode:
		return "a name must be plain text, without anchor, alias, tag or ?; write it alone, or quote it"
	default:
		return "a name must be plain text; quote " + cmp.Or(p.shownName("", n.String()), "it")
	}
}

// fieldLike matches names of fields, even misspelled ones, but hardly any secret.
var fieldLike = regexp.MustCompile(`^[A-Za-z_-]{1,32}$`)

// mayBeSecret reports whether a name may be a secret in the wrong place, such as a URL where a mapping belongs.
func (p *Problems) mayBeSecret(name string) bool {
	return p.format.Private && !fieldLike.MatchString(name)
}

// shownName quotes a name after some text. It returns "" if the name may be a secret.
func (p *Problems) shownName(before, name string) string {
	if p.mayBeSecret(name) {
		return ""
	}
	return before + Quote(name)
}

// memberPath is [Join], but hides a name that may be a secret.
func (p *Problems) memberPath(path, name string) string {
	if !p.mayBeSecret(name) {
		return Join(path, name)
	}
	for n := 1; ; n++ { // each hidden name gets a path of its own, because only one mistake per path is reported
		if at := Join(path, strings.Repeat(hidden, n)); !p.Given(at) {
			return at
		}
	}
}

// hidden replaces a hidden name in a path.
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

// Index adds an index of a list to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (p *Problems) readSlice(n ast.Node, v reflect.Value, path string) {
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

// OneOrMany reads a list, or a single value as a list of one, into list, a pointer to a slice.
func (p *Problems) OneOrMany(n ast.Node, list any, path string) {
	v := reflect.ValueOf(list).Elem()
	if _, ok := n.(*ast.SequenceNode); ok {
		p.readSlice(n, v, path)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	p.readInto(n, v.Index(0), path)
}

// Item returns the path of item i of a field that [Problems.OneOrMany] has read.
func (p *Problems) Item(path string, i int) string {
	if p.Given(Index(path, 0)) {
		return Index(path, i)
	}
	return path
}

// Text reads a text on one line.
func (p *Problems) Text(n ast.Node, path string) string { return p.text(n, path, "") }

// Lines reads a text that may have several lines.
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
			p.Add(path, "%scontains the character %U, which is not printable; remove it", p.shown("", s, " "), c)
			break
		}
	}
	return s
}

// unquoted reports a number or bool in the place of a text.
func (p *Problems) unquoted(n ast.Node, path string) string {
	if p.isDuration(path) { // quoting it would not help, because a duration needs a unit
		p.Add(path, "%swant a number with a unit, such as 60s", p.shown("", n.String(), " has no unit; "))
		return ""
	}
	p.Add(path, "must be text; quote it%s", p.shown(": ", n.String(), ""))
	return ""
}

// shown quotes a text between two others. It returns "" if the text may be a secret.
func (p *Problems) shown(before, text, after string) string {
	if p.format.Private {
		return ""
	}
	return before + Quote(text) + after
}

// Integer reads a whole number in decimal. YAML's other notations (0x10, 010, 1_000) are rejected, because they are easily
// misread.
func (p *Problems) Integer(n ast.Node, path, want string) int64 {
	text := n.GetToken().Value
	if _, ok := n.(*ast.IntegerNode); ok || isPlain(n) && digits.MatchString(text) {
		if v, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(v, 10) == text {
			return v
		}
		p.Add(path, "%s is not a plain decimal number, or is too large; write it without +, _, letters and leading zeros", Quote(text))
		return 0
	}
	p.Add(path, "must be %s; got %s%s", want, p.Kind(n), quotesHint(n))
	return 0
}

var (
	// numeric matches numbers, even those that the library takes for texts when they are not quoted, such as 1e-05 and
	// numbers of 20 digits.
	numeric = regexp.MustCompile(`^[-+]?\d+(\.\d*)?([eE][-+]?\d+)?$`)
	// digits matches whole numbers of any size.
	digits = regexp.MustCompile(`^[-+]?\d+$`)
	// plainNumber matches numbers in decimal notation, without the forms that [Problems.Integer] rejects.
	plainNumber = regexp.MustCompile(`^-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?$`)
)

// isPlain reports whether a node is a number or an unquoted text.
func isPlain(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return true
	case *ast.StringNode:
		return n.Token.Type == token.StringType
	}
	return false
}

func (p *Problems) float(n ast.Node, path string) float64 {
	if text := n.GetToken().Value; isPlain(n) && plainNumber.MatchString(text) {
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			return v
		}
	}
	p.Add(path, "must be a plain decimal number such as 0.5; got %s%s", p.Kind(n), quotesHint(n))
	return 0
}

func (p *Problems) boolean(n ast.Node, path string) bool {
	if b, ok := n.(*ast.BoolNode); ok {
		return b.Value
	}
	p.Add(path, "must be true or false; got %s%s", p.Kind(n), quotesHint(n))
	return false
}

// Kind describes a node in a message. It shows short values, unless they may be secrets.
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
