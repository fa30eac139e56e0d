//! Kinds of pictures, as SVG.
//!
//! Every colour of a picture is one of `colours`; the page's style replaces them in the dark.

use std::ops::Range;

use crate::number::{self, Show};
use plotters::{
    coord::{
        combinators::{IntoLogRange as _, LogCoord},
        ranged1d::{DefaultFormatting, KeyPointHint, Ranged},
        types::RangedCoordf64,
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

const WIDTH: u32 = 860;
/// Of wide curves, which are pictures of their own, too.
const FILE_HEIGHT: u32 = 320;
const ROW: u32 = 28;
const FONT: u32 = 15;
/// Average width of a character.
const CHARACTER: f64 = 6.4;
/// Room for labels left of rows, in characters.
const LABEL_MAX: usize = 44;
/// Percentiles that an axis of shares names.
const SHARES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];

const INK: RGBColor = RGBColor(0x1d, 0x20, 0x25);
const SOFT: RGBColor = RGBColor(0x66, 0x6c, 0x76);
const GRID: RGBColor = RGBColor(0xe8, 0xe8, 0xea);
const SERIES: [RGBColor; 8] = [
    RGBColor(0x2f, 0x6f, 0xde),
    RGBColor(0xe0, 0x76, 0x2f),
    RGBColor(0x1f, 0x9d, 0x76),
    RGBColor(0xa9, 0x4f, 0xc4),
    RGBColor(0xc9, 0xa0, 0x11),
    RGBColor(0xd5, 0x45, 0x7c),
    RGBColor(0x4a, 0xa3, 0xc7),
    RGBColor(0x7c, 0x7f, 0x86),
];
const SERIES_DARK: [&str; 8] =
    ["#6ea2ff", "#ff9f5f", "#4fd0a5", "#d08bea", "#ecc94b", "#ff7fac", "#7fcdec", "#a3a7af"];

/// A colour of pictures.
#[derive(Debug)]
pub(super) struct Colour {
    pub(super) name: String,
    /// As SVG has it.
    pub(super) hex: String,
    /// The colour on a dark page.
    pub(super) dark: String,
}

/// Every colour that a picture may have.
pub(super) fn colours() -> Vec<Colour> {
    let colour = |name: String, light: RGBColor, dark: &str| {
        let RGBColor(r, g, b) = light;
        Colour { name, hex: format!("#{r:02X}{g:02X}{b:02X}"), dark: dark.to_owned() }
    };
    let named = [("ink", INK, "#e8e9eb"), ("soft", SOFT, "#9aa0aa"), ("grid", GRID, "#2a2d33")];
    let named = named.into_iter().map(|(name, light, dark)| colour(name.to_owned(), light, dark));
    let series = (0..8).map(|n| colour(format!("c{n}"), SERIES[n], SERIES_DARK[n]));
    let ramp = (0..8).map(|n| {
        let dark = format!("color-mix(in srgb, var(--c0) {}%, var(--panel))", ramp_percent(n));
        colour(format!("r{n}"), ramp(n), &dark)
    });
    named.chain(series).chain(ramp).collect()
}

fn ramp_percent(index: usize) -> u32 {
    18 + 82 * u32::try_from(index).unwrap_or(7).min(7) / 7
}

/// Parts of an order, from light to dark.
fn ramp(index: usize) -> RGBColor {
    let RGBColor(r, g, b) = SERIES[0];
    let mixed = |part: u8| {
        let mixed = 255 - (255 - u32::from(part)) * ramp_percent(index) / 100;
        u8::try_from(mixed).unwrap_or(u8::MAX)
    };
    RGBColor(mixed(r), mixed(g), mixed(b))
}

fn series_colour(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

/// A picture.
#[derive(Clone, Debug)]
pub struct Chart {
    pub(super) title: String,
    pub(super) svg: String,
    /// Names and their colours.
    pub(super) legend: Vec<(String, String)>,
    pub(super) is_wide: bool,
}

impl Chart {
    fn wide(svg: String) -> Self {
        Self { title: String::new(), svg, legend: Vec::new(), is_wide: true }
    }

    /// With a heading.
    #[must_use]
    pub fn titled(mut self, title: String) -> Self {
        self.title = title;
        self
    }

    /// The picture as a file of its own, with its legend, on a white ground.
    #[must_use]
    pub fn file(&self) -> String {
        const LEGEND: u32 = 30;
        let known = colours();
        let hex = |name: &str| {
            known.iter().find(|colour| colour.name == name).map_or("#000000", |colour| &*colour.hex)
        };
        let width = WIDTH;
        let height = FILE_HEIGHT + LEGEND;
        let mut legend = String::new();
        let mut x = 16.0;
        for (name, colour) in &self.legend {
            let hex = hex(colour);
            let name = escaped(name);
            legend += &format!(
                "<rect x=\"{x:.0}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{hex}\"/><text x=\"{:.0}\" y=\"21\" \
                 font-family=\"sans-serif\" font-size=\"{FONT}\" fill=\"#1D2025\">{name}</text>\n",
                x + 18.0
            );
            x += 44.0 + name.chars().count() as f64 * (CHARACTER + 1.6);
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>\n{legend}<g \
             transform=\"translate(0,{LEGEND})\">\n{}</g>\n</svg>\n",
            self.svg
        )
    }

    /// With a legend: names, in the order of the series' colours.
    #[must_use]
    pub fn keyed(mut self, names: &[String]) -> Self {
        self.legend = legend(names, "c");
        self
    }

    /// With a legend: names, and the number of the colour of each.
    #[must_use]
    pub fn coloured(mut self, names: impl IntoIterator<Item = (String, usize)>) -> Self {
        let named = names.into_iter().map(|(name, colour)| (name, format!("c{}", colour % 8)));
        self.legend = named.collect();
        self
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn legend(names: &[String], prefix: &str) -> Vec<(String, String)> {
    let colour = |(index, name): (usize, &String)| (name.clone(), format!("{prefix}{}", index % 8));
    names.iter().enumerate().map(colour).collect()
}

/// An axis: the scale of its numbers and the format of its ticks.
pub struct Axis {
    scale: Scale,
    show: Show,
}

enum Scale {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
    /// Shares from 0 to 1 - 10⁻ⁿ: 0, 0.9, 0.99, … are equally far apart.
    Nines(f64),
}

impl Axis {
    /// From 0 to the largest of `values`.
    #[must_use]
    pub fn linear(values: impl IntoIterator<Item = f64>, show: Show) -> Self {
        let max = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let max = if max > 0.0 { max * 1.02 } else { 1.0 };
        Self { scale: Scale::Linear((0.0..max).into()), show }
    }

    /// A logarithmic axis that holds the positive ones of `values`.
    #[must_use]
    pub fn log(values: impl IntoIterator<Item = f64>, show: Show) -> Self {
        Self { scale: Scale::Log(log_range(values).log_scale().into()), show }
    }

    /// A logarithmic axis whose ticks are powers of two: for counts that double.
    #[must_use]
    pub fn doubling(values: impl IntoIterator<Item = f64>) -> Self {
        let scale = Scale::Log(log_range(values).log_scale().base(2.0).into());
        Self { scale, show: number::short }
    }

    /// Shares as percentiles, up to so many nines.
    #[must_use]
    pub fn nines(count: f64) -> Self {
        Self { scale: Scale::Nines(count), show: number::percentile }
    }
}

fn log_range(values: impl IntoIterator<Item = f64>) -> Range<f64> {
    let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = positive
        .fold((f64::INFINITY, 0.0_f64), |(min, max), value| (min.min(value), max.max(value)));
    if high > 0.0 { low * 0.9..high.max(low * 2.0) * 1.1 } else { 1.0..10.0 }
}

/// 1, 2 and 5 times the powers of ten from `low` to `high`.
fn marks(low: f64, high: f64) -> Vec<f64> {
    #[expect(clippy::cast_possible_truncation, reason = "exponents of ten")]
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let marks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|mark| mark * 10_f64.powi(decade)));
    marks.filter(|mark| (low..=high).contains(mark)).collect()
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    /// A value off the axis is drawn at its end: numbers from a file may be anything.
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let Range { start, end } = self.range();
        let value = value.clamp(start, end);
        match &self.scale {
            Scale::Linear(linear) => linear.map(&value, limit),
            Scale::Log(log) => log.map(&value, limit),
            Scale::Nines(count) => {
                let place = -(1.0 - value).max(10_f64.powf(-count)).log10();
                RangedCoordf64::from(0.0..*count).map(&place, limit)
            }
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match &self.scale {
            Scale::Linear(linear) => linear.key_points(hint),
            Scale::Log(log) => {
                let Range { start, end } = log.range();
                let points = log.key_points(hint);
                if points.len() > 3 { points } else { marks(start, end) }
            }
            Scale::Nines(count) => {
                let end = 1.0 - 10_f64.powf(-count);
                SHARES.into_iter().filter(|share| *share < end).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        match &self.scale {
            Scale::Linear(linear) => linear.range(),
            Scale::Log(log) => log.range(),
            Scale::Nines(_) => 0.0..1.0,
        }
    }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Plot<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, RangedCoordf64>>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Draws an empty picture with `draw`.
fn picture(width: u32, height: u32, draw: impl FnOnce(&Root<'_>) -> Drawn<'static>) -> String {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        // A string takes all that is written to it.
        let _ = draw(&root);
        let _ = root.present();
    }
    // Inside a page the name space is known.
    svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
}

fn text(size: u32, colour: RGBColor, anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Center))
}

fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Rows with labels left of a common horizontal axis; `draw` gets the vertical middle of each row.
fn rows(
    labels: &[&str],
    axis: Axis,
    right: u32,
    draw: impl FnOnce(&mut Plot<'_>, &dyn Fn(usize) -> f64) -> Drawn<'static>,
) -> Chart {
    let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels")]
    let left = (longest.min(LABEL_MAX) as f64 * CHARACTER) as u32 + 18;
    let height = u32::try_from(labels.len()).unwrap_or(u32::MAX).saturating_mul(ROW);
    let count = labels.len() as f64;
    Chart::wide(picture(WIDTH, height + 30, |root| {
        let show = axis.show;
        let mut plot = ChartBuilder::on(root)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Bottom, 30)
            .margin_right(right)
            .build_cartesian_2d(axis, 0.0..count)?;
        mesh(&mut plot, &show, &|_| String::new(), true)?;
        for (index, label) in labels.iter().enumerate() {
            let y = pixels(index) * ROW.cast_signed() + ROW.cast_signed() / 2;
            let at = (left.cast_signed() - 10, y);
            root.draw_text(&cut(label), &text(FONT, INK, HPos::Right), at)?;
        }
        draw(&mut plot, &|index| count - index as f64 - 0.5)
    }))
}

/// The end of a label names the difference.
fn cut(label: &str) -> String {
    let length = label.chars().count();
    if length <= LABEL_MAX {
        return label.to_owned();
    }
    format!("…{}", label.chars().skip(length + 1 - LABEL_MAX).collect::<String>())
}

fn mesh(
    plot: &mut Plot<'_>,
    show_x: &dyn Fn(f64) -> String,
    show_y: &dyn Fn(f64) -> String,
    has_rows: bool,
) -> Drawn<'static> {
    let show_x = |x: &f64| show_x(*x);
    let show_y = |y: &f64| show_y(*y);
    let mut mesh = plot.configure_mesh();
    mesh.bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .label_style(("sans-serif", FONT - 1).into_font().color(&SOFT))
        .x_labels(8)
        .x_label_formatter(&show_x)
        .y_label_formatter(&show_y);
    if has_rows {
        mesh.disable_y_mesh().y_labels(0);
    }
    mesh.draw()
}

/// One horizontal bar, from 0, with whiskers.
pub struct Bar {
    /// Left of the bar.
    pub label: String,
    /// Number of its colour.
    pub colour: usize,
    /// Its length.
    pub value: f64,
    /// Smallest and largest.
    pub range: (f64, f64),
}

/// Horizontal bars below each other, with their values.
#[must_use]
pub fn bars(bars: &[Bar], show: Show) -> Chart {
    let labels = bars.iter().map(|bar| bar.label.as_str()).collect::<Vec<_>>();
    let axis = Axis::linear(bars.iter().map(|bar| bar.range.1), show);
    rows(&labels, axis, 86, |plot, middle| {
        for (index, bar) in bars.iter().enumerate() {
            let y = middle(index);
            let (low, high) = bar.range;
            let corners = [(0.0, y - 0.28), (bar.value, y + 0.28)];
            let fill = series_colour(bar.colour).filled();
            plot.draw_series([Rectangle::new(corners, fill)])?;
            let whisker = |points| PathElement::new(points, INK.stroke_width(1));
            let ends = [low, high].map(|x| whisker(vec![(x, y - 0.14), (x, y + 0.14)]));
            plot.draw_series(ends.into_iter().chain([whisker(vec![(low, y), (high, y)])]))?;
            let at = (high.max(bar.value), y);
            let value = Text::new(show(bar.value), (8, 0), text(FONT, INK, HPos::Left));
            plot.draw_series([EmptyElement::at(at) + value])?;
        }
        Ok(())
    })
}

/// Percentiles of one cell.
pub struct Strip {
    /// Left of the row.
    pub label: String,
    /// Number of its colour.
    pub colour: usize,
    /// Ascending.
    pub marks: Vec<f64>,
}

/// Percentiles below each other, on one logarithmic axis; the higher ones are smaller.
#[must_use]
pub fn strips(strips: &[Strip], show: Show) -> Chart {
    let labels = strips.iter().map(|strip| strip.label.as_str()).collect::<Vec<_>>();
    let axis = Axis::log(strips.iter().flat_map(|strip| strip.marks.iter().copied()), show);
    rows(&labels, axis, 30, |plot, middle| {
        for (index, Strip { colour, marks, .. }) in strips.iter().enumerate() {
            let y = middle(index);
            let colour = series_colour(*colour);
            let line = marks.iter().map(|mark| (*mark, y)).collect::<Vec<_>>();
            plot.draw_series([PathElement::new(line, colour.stroke_width(2))])?;
            let dots = marks.iter().enumerate();
            let dots = dots
                .map(|(at, mark)| Circle::new((*mark, y), 7 - pixels(at).min(5), colour.filled()));
            plot.draw_series(dots)?;
        }
        Ok(())
    })
}

/// One row of parts that add up.
pub struct Stack {
    /// Left of the row.
    pub label: String,
    /// Values in the order of the legend.
    pub parts: Vec<f64>,
}

/// Parts of a whole below each other; `names` is the legend. Parts that have an order are coloured from light
/// to dark.
#[must_use]
pub fn stacks(stacks: &[Stack], names: &[String], has_order: bool, show: Show) -> Chart {
    let labels = stacks.iter().map(|stack| stack.label.as_str()).collect::<Vec<_>>();
    let axis = Axis::linear(stacks.iter().map(|stack| stack.parts.iter().sum()), show);
    let colour = if has_order { ramp } else { series_colour };
    let chart = rows(&labels, axis, 30, |plot, middle| {
        for (index, stack) in stacks.iter().enumerate() {
            let y = middle(index);
            let mut from = 0.0;
            for (part, value) in stack.parts.iter().enumerate() {
                let corners = [(from, y - 0.28), (from + value, y + 0.28)];
                plot.draw_series([Rectangle::new(corners, colour(part).filled())])?;
                from += value;
            }
        }
        Ok(())
    });
    Chart { legend: legend(names, if has_order { "r" } else { "c" }), ..chart }
}

/// One curve.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Number of its colour.
    pub colour: usize,
    /// In the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}

/// Curves over two axes.
pub struct Lines {
    /// Below.
    pub x: Axis,
    /// Left.
    pub y: Axis,
    /// All curves.
    pub series: Vec<Series>,
    /// Whether each point is marked.
    pub has_dots: bool,
    /// Full width; else several stand beside each other.
    pub is_wide: bool,
}

impl Lines {
    /// The picture; its legend is [`Chart::keyed`].
    #[must_use]
    pub fn chart(self) -> Chart {
        let Self { x, y, series, has_dots, is_wide } = self;
        let (width, height) = if is_wide { (WIDTH, FILE_HEIGHT) } else { (440, 270) };
        let svg = picture(width, height, |root| {
            let show_x = x.show;
            let show_y = y.show;
            let mut plot = ChartBuilder::on(root)
                .set_label_area_size(LabelAreaPosition::Left, 74)
                .set_label_area_size(LabelAreaPosition::Bottom, 30)
                .margin_top(10)
                .margin_right(30)
                .build_cartesian_2d(x, y)?;
            plot.configure_mesh()
                .bold_line_style(GRID)
                .light_line_style(TRANSPARENT)
                .axis_style(GRID)
                .label_style(("sans-serif", FONT - 1).into_font().color(&SOFT))
                .x_labels(if is_wide { 8 } else { 5 })
                .y_labels(6)
                .x_label_formatter(&|x| show_x(*x))
                .y_label_formatter(&|y| show_y(*y))
                .draw()?;
            for Series { colour, points, .. } in series {
                let colour = series_colour(colour);
                if has_dots {
                    plot.draw_series(points.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
                }
                plot.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            }
            Ok(())
        });
        Chart { is_wide, ..Chart::wide(svg) }
    }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    fn ticks(axis: &Axis) -> Vec<f64> {
        axis.key_points(BoldPoints(8))
    }

    /// The last tick of an axis used to stand where another number was.
    #[test]
    fn every_tick_stands_at_its_number_and_they_are_evenly_apart() {
        for max in [0.7, 9.0, 93.0, 1000.0, 1_662_000.0, 3.3e9] {
            let axis = Axis::linear([max], number::short);
            let ticks = ticks(&axis);
            assert!(ticks.len() >= 3 && ticks[0].abs() < 1e-9, "{max}: {ticks:?}");
            let step = ticks[1];
            for (index, tick) in ticks.iter().enumerate() {
                assert!((tick - index as f64 * step).abs() < step * 1e-6, "{max}: {ticks:?}");
                let place = f64::from(axis.map(tick, (0, 100_000))) / 100_000.0;
                assert!((place - tick / (max * 1.02)).abs() < 1e-4, "{max}: {tick} at {place}");
            }
        }
    }

    #[test]
    fn axes_hold_their_values_and_survive_without() {
        for axis in [
            Axis::linear([], number::short),
            Axis::linear([0.0, f64::NAN], number::short),
            Axis::log([], number::short),
            Axis::log([0.0, -1.0], number::short),
            Axis::log([5.0], number::short),
            Axis::nines(5.0),
        ] {
            let places =
                ticks(&axis).iter().map(|tick| axis.map(tick, (0, 1000))).collect::<Vec<_>>();
            assert!(places.is_sorted() && places.iter().all(|place| (0..=1000).contains(place)));
        }
    }

    #[test]
    fn a_logarithmic_axis_has_round_ticks_however_short_it_is() {
        assert_eq!(ticks(&Axis::log([3.0, 40.0], number::short)), [5.0, 10.0, 20.0]);
        assert_eq!(ticks(&Axis::log([1.0, 1e6], number::short)).len(), 7);
        assert_eq!(ticks(&Axis::doubling([1.0, 8.0])), [1.0, 2.0, 4.0, 8.0]);
    }

    #[test]
    fn nines_are_equally_far_apart() {
        let axis = Axis::nines(4.0);
        for (share, place) in [(0.0, 0), (0.9, 250), (0.99, 500), (0.9999, 1000), (1.0, 1000)] {
            assert_eq!(axis.map(&share, (0, 1000)), place, "{share}");
        }
    }

    #[test]
    fn a_long_label_keeps_its_end() {
        assert_eq!(cut("short"), "short");
        let label = format!("{}end", "x".repeat(100));
        assert!(cut(&label).ends_with("xend") && cut(&label).chars().count() == LABEL_MAX);
    }
}
