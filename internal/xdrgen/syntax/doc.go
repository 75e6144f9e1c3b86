// Package syntax scans and parses the data description language of RFC 4506 and the program definitions of RFC 5531
// section 12, as they occur in files named .x.
//
// It also accepts extensions that published files use:
//
//   - preprocessor lines: #define of a number, #if, #ifdef, #ifndef, #else, #endif, #include of another .x file, line
//     markers; all others are ignored with a [Note]
//   - lines that begin with %, which rpcgen copies to its output: ignored with a note
//   - char, short and long with and without unsigned, struct T and union T and enum T for a type T, string without a
//     bound, enumerators without a value, struct *T { ... }
//   - constants that are defined by the name of another, or that are quoted text
//   - package "..." and import "..." of other compilers: ignored with a note
//
// Names are not resolved here, but by package check.
//
// # Limitations
//
// Input is limited to [MaxInput] bytes in total, and nesting of bodies to [MaxNesting]. The macros of a #define are not
// expanded in text: the name is declared as a constant. Macros with parameters and #elif are not supported.
package syntax
