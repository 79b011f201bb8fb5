package policy

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// The YAML is parsed by a library and then read from its tree into the types of File, instead of being unmarshalled:
// that way all mistakes are found, not the first, and the checks that follow know the line of every value.

// parseYAML gives the tree of the only document; nil after a mistake.
func (p *problems) parseYAML(data []byte) (root ast.Node) {
	defer func() {
		if v := recover(); v != nil { // a file that breaks the library must not take a worker with it
			root = nil
			p.add("", "the YAML cannot be read: %v", v)
		}
	}()
	if !p.boundYAML(data) {
		return nil
	}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p.syntax(err)
		return nil
	}
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if root != nil {
			p.lines["document"] = d.Body.GetToken().Position.Line
			p.add("document", "a second YAML document; a policy file is one: remove the ---")
			return nil
		}
		root = d.Body
	}
	if root == nil {
		p.add("", "the file is empty; want policies:")
	}
	return root
}

func (p *problems) syntax(err error) {
	message := "invalid YAML: " + strings.Split(err.Error(), "\n")[0]
	var ye yaml.Error
	if errors.As(err, &ye) {
		message = "invalid YAML: " + ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			p.lines[""] = max(1, t.Position.Line)
		}
	}
	p.add("", "%s", message)
}

// read reads a node into v, whose type says what it may be.
func (p *problems) read(n ast.Node, v reflect.Value, path string) {
	if t := n.GetToken(); p.lines[path] == 0 && t != nil && t.Position != nil {
		p.lines[path] = t.Position.Line
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		p.add(path, "anchors, aliases and tags are not taken; write the value out")
		return
	case *ast.NullNode:
		p.add(path, "has no value; give one, or remove it")
		return
	default:
		p.readInto(n, v, path)
	}
}

func (p *problems) readInto(n ast.Node, v reflect.Value, path string) {
	switch to := v.Addr().Interface().(type) {
	case *Amount:
		*to = p.amount(n, path)
		return
	case *Patterns:
		p.oneOrMany(n, v, path)
		return
	case *Conditions:
		p.oneOrMany(n, v, path)
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
		v.SetString(p.text(n, path))
	case reflect.Int64:
		v.SetInt(p.integer(n, path, "a whole number"))
	case reflect.Float64:
		v.SetFloat(p.number(n, path))
	}
}

// object reads a mapping whose names are fields.
func (p *problems) object(n ast.Node, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	names := gatherFields(v, fields, nil)
	p.members(n, path, fmt.Sprintf("a mapping with %s", strings.Join(names, ", ")), func(name string, value ast.Node, at string) {
		field, ok := fields[name]
		if !ok {
			p.add(at, "unknown field %s%s; want one of %s", quote(name), didYouMean(name, names), strings.Join(names, ", "))
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
func (p *problems) dictionary(n ast.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	p.members(n, path, "a mapping", func(name string, value ast.Node, at string) {
		elem := reflect.New(v.Type().Elem()).Elem()
		p.read(value, elem, at)
		v.SetMapIndex(reflect.ValueOf(name), elem)
	})
	if v.Len() == 0 && !p.has(path) {
		p.add(path, "is empty; fill it, or remove it")
	}
}

// members calls member for each name of a mapping.
func (p *problems) members(n ast.Node, path, want string, member func(name string, value ast.Node, at string)) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		p.add(path, "must be %s; got %s", want, kind(n))
		return
	}
	seen := map[string]bool{}
	for _, m := range values {
		key, ok := m.Key.(*ast.StringNode)
		if !ok {
			p.lines[path+".key"] = m.Key.GetToken().Position.Line
			p.add(path+".key", "a name must be plain text; quote %s", quote(m.Key.String()))
			continue
		}
		at := join(path, key.Value)
		p.lines[at] = key.GetToken().Position.Line
		if seen[key.Value] {
			p.add(at, "is given twice; remove one")
			continue
		}
		seen[key.Value] = true
		member(key.Value, m.Value, at)
	}
}

var plainStep = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join adds a name to a path.
func join(path, name string) string {
	switch {
	case !plainStep.MatchString(name):
		return path + "[" + quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (p *problems) sequence(n ast.Node, v reflect.Value, path string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		p.add(path, "must be a list; got %s", kind(n))
		return
	}
	if len(seq.Values) == 0 {
		p.add(path, "is empty; fill it, or remove it")
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, value := range seq.Values {
		p.read(value, v.Index(i), index(path, i))
	}
}

// oneOrMany reads a list, or one value as a list of it.
func (p *problems) oneOrMany(n ast.Node, v reflect.Value, path string) {
	if _, ok := n.(*ast.SequenceNode); ok {
		p.sequence(n, v, path)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	p.readInto(n, v.Index(0), path)
}

func (p *problems) text(n ast.Node, path string) string {
	var s string
	switch n := n.(type) {
	case *ast.StringNode:
		s = n.Value
	case *ast.LiteralNode:
		s = strings.TrimRight(n.Value.Value, "\n")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		p.add(path, "must be text; quote it: %s", quote(n.String()))
		return ""
	default:
		p.add(path, "must be text; got %s", kind(n))
		return ""
	}
	if s == "" {
		p.add(path, "is empty; fill it, or remove it")
	}
	for _, c := range s {
		if !unicode.IsPrint(c) || c == unicode.ReplacementChar {
			p.add(path, "%s holds the character %U, which is not printable; remove it", quote(s), c)
			break
		}
	}
	return s
}

// integer reads a whole number in decimal; YAML's other ways to write one (0x10, 010, 1_000) are mistaken too easily.
func (p *problems) integer(n ast.Node, path, want string) int64 {
	if _, ok := n.(*ast.IntegerNode); ok {
		text := n.GetToken().Value
		if v, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(v, 10) == text {
			return v
		}
		p.add(path, "%s is not a number in plain decimal digits, or too large; write it as 1000", quote(text))
		return 0
	}
	p.add(path, "must be %s; got %s", want, kind(n))
	return 0
}

func (p *problems) amount(n ast.Node, path string) Amount {
	if s, ok := n.(*ast.StringNode); ok {
		if s.Value == "unlimited" {
			return Unlimited
		}
		p.add(path, "%s is no limit; want a whole number, 1 to 1000000000, or unlimited", quote(s.Value))
		return 0
	}
	v := p.integer(n, path, "a whole number, 1 to 1000000000, or unlimited")
	if v < 1 || v > maxAmount {
		p.add(path, "%d is out of range; want 1 to 1000000000, or unlimited", v)
		return 0
	}
	return Amount(v)
}

func (p *problems) number(n ast.Node, path string) float64 {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		if v, err := strconv.ParseFloat(n.GetToken().Value, 64); err == nil && !math.IsInf(v, 0) && !math.IsNaN(v) {
			return v
		}
	}
	p.add(path, "must be a number such as 0.5; got %s", kind(n))
	return 0
}

// kind says what a node is, and shows it where it is short.
func kind(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode:
		return "the text " + quote(n.Value)
	case *ast.LiteralNode:
		return "text"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return "an anchor, alias or tag"
	default:
		return quote(n.String())
	}
}
