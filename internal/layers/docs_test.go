package layers

// A file that is no text: links may lead to it.
var picture = string([]byte{0x89, 'P', 'N', 'G', 0})

// pageTrees are about rules "links" and "messages".
func pageTrees() []smallTree {
	const fence = "```"
	const code = "// Package fabric is here for a test.\npackage fabric\n\n"
	return []smallTree{
		{"a file that is gone", "links", map[string]string{
			"README.md": "See\n[a page](docs/gone.md).\n",
		}, `README.md:2: there is no "docs/gone.md"`},
		{"a file that is gone, from below", "links", map[string]string{
			"docs/a.md": "[b](b.md)\n", "b.md": "",
		}, `docs/a.md:1: there is no "b.md"`},
		{"a picture that is gone", "links", map[string]string{
			"README.md": "![it](docs/a.png)\n",
		}, `there is no "docs/a.png"`},
		{"a heading that is gone", "links", map[string]string{
			"README.md": "[b](docs/b.md#two-words)\n", "docs/b.md": "# Two word\n",
		}, `there is no heading "docs/b.md#two-words"`},
		{"a heading in a block of code", "links", map[string]string{
			"README.md": "[b](#b)\n\n" + fence + "\n# b\n" + fence + "\n",
		}, `there is no heading "#b"`},
		{"a heading of what has none", "links", map[string]string{
			"README.md": "[b](a.go#b)\n", "a.go": "package a\n",
		}, `there is no heading "a.go#b"`},
		{"a definition", "links", map[string]string{
			"README.md": "[b][c]\n\n[c]: gone.md\n",
		}, `README.md:3: there is no "gone.md"`},
		{"links that lead somewhere", "links", map[string]string{
			"README.md": "[a](docs/a.md), [dir](docs), [same](#it-is-b), [again](docs/a.md#x-1), [web](https://example.org/gone.md \"t\"), ![p](docs/p.png)\n" +
				"`[no](link)`\n## It is `B`!\n\n" + fence + "\n[no](link)\n" + fence + "\n",
			"docs/a.md":  "# X\n## [X](../README.md)\n[up](../README.md) [out](./../docs/)\n",
			"docs/p.png": picture,
		}, ""},

		{"a message that nobody prints", "messages", map[string]string{
			messagesPage:       fence + "message\nthere is no such device\n" + fence + "\n",
			"fabric/x.go":      code + "const x = \"there is a device\"\n",
			"fabric/x_test.go": "package fabric\n\nconst y = \"there is no such device\"\n",
		}, `docs/troubleshooting.md:2: no code prints "there is no such device"`},
		{"a message across a verb", "messages", map[string]string{
			messagesPage:  fence + "message\nit may lock 64 KiB of memory\n" + fence + "\n",
			"fabric/x.go": code + "const x = \"it may lock %d KiB of memory\"\n",
		}, "no code prints"},
		{"a message that says nothing", "messages", map[string]string{
			messagesPage:  fence + "message\n...: closed\n" + fence + "\n",
			"fabric/x.go": code + "const x = \"%s: closed\"\n",
		}, "no piece of 12 characters"},
		{"messages that are printed", "messages", map[string]string{
			messagesPage:  "Text.\n\n" + fence + "message\nit may lock ... of memory, and wants more\n" + fence + "\n\n" + fence + "\nnot of ours\n" + fence + "\n",
			"fabric/x.go": code + "func x() error { return fmt.Errorf(\"it may lock %s \"+\n\t\"of memory, \"+\"and wants more\", y) }\n",
		}, ""},
	}
}
