//! `punctual-mutants TREE LIST LEFT_OUT` writes the mutants of LIST, as `cargo mutants --list --json` prints it, into the code in
//! TREE. Mutant N, counted from 0, acts if `PUNCTUAL_MUTANT` is N. LEFT_OUT has the numbers of those that are not written. Prints
//! the numbers of those that have no place in a program that is built once: in constants, and fields of some structs.
//!
//! Each mutant has the comments `/*<N*/` and `/*N>*/` around it, which tell what an error of the compiler is about.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    env, fs,
    ops::Range,
    path::Path,
};

use proc_macro2::Span;
use serde_json::Value;
use syn::{
    Arm, BinOp, Block, Expr, ExprBinary, ExprRepeat, ExprStruct, ExprUnary, ImplItemConst, ImplItemFn, ItemConst, ItemFn,
    ItemStatic, TraitItemConst, TraitItemFn, Type,
    spanned::Spanned,
    visit::{self, Visit},
};

/// The module of the program that knows which mutant acts.
const SWITCH: &str = include_str!("switch.rs");

/// A place of a file that is written anew.
struct Place {
    range: Range<usize>,
    change: Change,
}

enum Change {
    /// A text before it.
    Insert(String),
    /// Other expressions for it, by the number of their mutant.
    Instead(Vec<(usize, String)>),
    /// The guard of an arm of `match`: the mutants where it always or never holds.
    Guard { always: Option<usize>, never: Vec<usize> },
}

struct Finder<'a> {
    source: &'a str,
    /// Number and replacement, by genre and first byte.
    mutants: HashMap<(&'a str, usize), Vec<(usize, &'a str)>>,
    places: Vec<Place>,
    written: HashSet<usize>,
    /// Within a constant, where no function can be called.
    constants: usize,
}

fn bytes(spanned: &impl Spanned) -> Range<usize> {
    let span: Span = spanned.span();
    span.byte_range()
}

/// A chain with `let` takes no other operator.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn assigns(operator: &BinOp) -> bool {
    use BinOp::{
        AddAssign, BitAndAssign, BitOrAssign, BitXorAssign, DivAssign, MulAssign, RemAssign, ShlAssign, ShrAssign, SubAssign,
    };
    matches!(
        operator,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

impl<'a> Finder<'a> {
    fn text(&self, spanned: &impl Spanned) -> &'a str {
        &self.source[bytes(spanned)]
    }

    fn take(&mut self, genre: &str, at: usize) -> Vec<(usize, &'a str)> {
        if self.constants > 0 {
            return Vec::new();
        }
        let found = self.mutants.get(&(genre, at)).cloned().unwrap_or_default();
        self.written.extend(found.iter().map(|(number, _)| *number));
        found
    }

    fn write(&mut self, range: Range<usize>, change: Change) {
        self.places.push(Place { range, change });
    }

    /// Other values that a function returns at once.
    fn body(&mut self, block: &Block) {
        let Some(first) = block.stmts.first() else { return };
        let at = bytes(first).start;
        let returns = self.take("FnValue", at).into_iter().map(|(number, value)| {
            let value = if value == "()" { "" } else { value };
            format!("/*<{number}*/if crate::mutants::on({number}) {{ return {value}; }}/*{number}>*/ ")
        });
        let text = returns.collect();
        self.write(at..at, Change::Insert(text));
    }

    fn within(&mut self, is_constant: bool, visit: impl FnOnce(&mut Self)) {
        self.constants += usize::from(is_constant);
        visit(self);
        self.constants -= usize::from(is_constant);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.within(function.sig.constness.is_some(), |finder| {
            finder.body(&function.block);
            visit::visit_item_fn(finder, function);
        });
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.within(function.sig.constness.is_some(), |finder| {
            finder.body(&function.block);
            visit::visit_impl_item_fn(finder, function);
        });
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.within(true, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.within(true, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.within(true, |finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast TraitItemConst) {
        self.within(true, |finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_type(&mut self, item: &'ast Type) {
        self.within(true, |finder| visit::visit_type(finder, item));
    }

    fn visit_expr_repeat(&mut self, expression: &'ast ExprRepeat) {
        self.visit_expr(&expression.expr);
        self.within(true, |finder| finder.visit_expr(&expression.len));
    }

    fn visit_expr_binary(&mut self, expression: &'ast ExprBinary) {
        let ExprBinary { left, op, right, .. } = expression;
        if !has_let(left) && !has_let(right) {
            let (l, r) = (self.text(left), self.text(right));
            let other = |operator: &str| match assigns(op) {
                true => format!("{l} {operator} {r}"),
                false => format!("({l}) {operator} ({r})"),
            };
            let mutants = self.take("BinaryOperator", bytes(op).start);
            let others = mutants.into_iter().map(|(number, operator)| (number, other(operator))).collect();
            self.write(bytes(expression), Change::Instead(others));
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast ExprUnary) {
        let mutants = self.take("UnaryOperator", bytes(&expression.op).start);
        let operand = self.text(&expression.expr);
        let others = mutants.into_iter().map(|(number, _)| (number, operand.to_owned())).collect();
        self.write(bytes(expression), Change::Instead(others));
        visit::visit_expr_unary(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let deleted: Vec<_> = self.take("MatchArm", bytes(arm).start).into_iter().map(|(number, _)| number).collect();
        if let Some((_, guard)) = &arm.guard {
            let (mut always, mut never) = (None, deleted);
            for (number, value) in self.take("MatchArmGuard", bytes(guard).start) {
                match value {
                    "true" => always = Some(number),
                    _ => never.push(number),
                }
            }
            self.write(bytes(guard), Change::Guard { always, never });
        } else if let [number] = deleted[..] {
            let at = bytes(&arm.pat).end;
            let guard = format!(" /*<{number}*/if !crate::mutants::on({number})/*{number}>*/");
            self.write(at..at, Change::Insert(guard));
        }
        visit::visit_arm(self, arm);
    }

    /// A field that is left out has the value of the base.
    fn visit_expr_struct(&mut self, expression: &'ast ExprStruct) {
        if let Some(base) = &expression.rest {
            let base = match self.text(base) {
                "Default::default()" => format!("<{}>::default()", self.text(&expression.path)),
                base => base.to_owned(),
            };
            for field in expression.fields.iter().filter(|field| field.colon_token.is_some()) {
                let other = format!("({base}).{}", self.text(&field.member));
                let mutants = self.take("StructField", bytes(field).start);
                let others = mutants.into_iter().map(|(number, _)| (number, other.clone())).collect();
                self.write(bytes(&field.expr), Change::Instead(others));
            }
        }
        visit::visit_expr_struct(self, expression);
    }
}

/// `places` are in order of their starts: what is inserted first, then the longer ones. The alternatives of a place have their
/// original text inside, because one mutant acts at a time.
fn render(source: &str, places: &[Place], range: Range<usize>) -> String {
    let (mut text, mut at, mut next) = (String::new(), range.start, 0);
    while let Some(place) = places.get(next) {
        text += &source[at..place.range.start];
        let end = places[next + 1..].iter().position(|other| other.range.start >= place.range.end);
        let end = end.map_or(places.len(), |count| next + 1 + count);
        let inner = |from| render(source, &places[from..end], place.range.clone());
        match &place.change {
            Change::Insert(inserted) => text += inserted,
            Change::Instead(others) => {
                text.push('(');
                for (number, other) in others {
                    text += &format!("/*<{number}*/if crate::mutants::on({number}) {{ {other} }} else /*{number}>*/");
                }
                text += &format!("{{ {} }})", inner(next + 1));
            }
            Change::Guard { always, never } => {
                for number in never {
                    text += &format!("/*<{number}*/!crate::mutants::on({number}) && /*{number}>*/");
                }
                text.push('(');
                if let Some(number) = always {
                    text += &format!("/*<{number}*/crate::mutants::on({number}) || /*{number}>*/");
                }
                text += &format!("({}))", inner(next + 1));
            }
        }
        at = place.range.end;
        next = if matches!(place.change, Change::Insert(_)) { next + 1 } else { end };
    }
    text + &source[at..range.end]
}

fn is_empty(change: &Change) -> bool {
    match change {
        Change::Insert(text) => text.is_empty(),
        Change::Instead(others) => others.is_empty(),
        Change::Guard { always, never } => always.is_none() && never.is_empty(),
    }
}

/// Writes the mutants of one file, and returns the numbers of those that were written.
fn mutate(path: &Path, mutants: &[(usize, &Value)]) -> HashSet<usize> {
    let source = fs::read_to_string(path).expect("a file of the list");
    let lines: Vec<usize> = source.split_inclusive('\n').scan(0, |at, line| Some(std::mem::replace(at, *at + line.len()))).collect();
    let number = |place: &Value, name: &str| usize::try_from(place[name].as_u64().expect("a number")).expect("it fits") - 1;
    let mut by_place: HashMap<_, Vec<_>> = HashMap::new();
    for (id, mutant) in mutants {
        let start = &mutant["span"]["start"];
        let line = lines[number(start, "line")];
        let byte = source[line..].char_indices().nth(number(start, "column")).expect("a place").0;
        let genre = mutant["genre"].as_str().expect("a text");
        by_place.entry((genre, line + byte)).or_default().push((*id, mutant["replacement"].as_str().expect("a text")));
    }
    let mut finder =
        Finder { source: &source, mutants: by_place, places: Vec::new(), written: HashSet::new(), constants: 0 };
    finder.visit_file(&syn::parse_file(&source).expect("Rust"));
    let Finder { mut places, written, .. } = finder;
    places.retain(|place| !is_empty(&place.change));
    places.sort_by_key(|place| (place.range.start, !place.range.is_empty(), usize::MAX - place.range.end));
    let mutated = render(&source, &places, 0..source.len());
    fs::write(path, mutated).expect("it is written");
    written
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [tree, list, left_out] = &arguments[..] else { panic!("punctual-mutants TREE LIST LEFT_OUT") };
    let mutants: Vec<Value> = serde_json::from_str(&fs::read_to_string(list).expect("a list")).expect("JSON");
    let left_out = fs::read_to_string(left_out).expect("a file");
    let left_out: HashSet<usize> = left_out.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    let mut files: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate().filter(|(number, _)| !left_out.contains(number)) {
        files.entry(mutant["file"].as_str().expect("a path")).or_default().push((number, mutant));
    }
    for (file, mutants) in files {
        let written = mutate(&Path::new(tree).join(file), &mutants);
        let missing: BTreeSet<_> = mutants.iter().map(|(number, _)| number).filter(|number| !written.contains(number)).collect();
        for number in missing {
            println!("{number}");
        }
    }
    let library = Path::new(tree).join("src/lib.rs");
    let text = fs::read_to_string(&library).expect("a library");
    fs::write(library, text + "\npub mod mutants;\n").expect("it is written");
    fs::write(Path::new(tree).join("src/mutants.rs"), SWITCH).expect("it is written");
}
