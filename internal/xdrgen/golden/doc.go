// Package golden has .x files with every construct of the language, and the output of xdrgen for them. Its tests
// compile the files again and compare, and test the codecs.
package golden

//go:generate go run ../../../cmd/xdrgen arrays.x
//go:generate go run ../../../cmd/xdrgen basic.x
//go:generate go run ../../../cmd/xdrgen -types chosen.x
//go:generate go run ../../../cmd/xdrgen consts.x
//go:generate go run ../../../cmd/xdrgen enums.x
//go:generate go run ../../../cmd/xdrgen -types flat.x
//go:generate go run ../../../cmd/xdrgen lists.x
//go:generate go run ../../../cmd/xdrgen -types names.x
//go:generate go run ../../../cmd/xdrgen nested.x
//go:generate go run ../../../cmd/xdrgen optional.x
//go:generate go run ../../../cmd/xdrgen -types program.x
//go:generate go run ../../../cmd/xdrgen recursion.x
//go:generate go run ../../../cmd/xdrgen unions.x
